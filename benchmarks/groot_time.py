"""CPU time of an update and a chunk of GR00T beside LeRobot 0.6.1, at middle size.

    PYTHONPATH=src .peer/bin/python benchmarks/groot_time.py OUT.json [ROUNDS]

Each round computes an update of LeRobot's policy, of kata's, and of kata's with the backbone's
features from a cache, then a chunk of both, in turns and on one thread. Weights are equal, and so
are losses. Each side's batch has gone through its own pipeline before.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY / "tools/peer"))

import policy_groot  # noqa: E402
import tiny_groot  # noqa: E402

from kata.spec import frozen_key  # noqa: E402

WIDTH, VOCABULARY = 256, 32_000
STACK = {"positional_embeddings": None, "num_attention_heads": 8, "attention_head_dim": 32}
CHANGES: dict[str, Any] = {
    "select_layer": 4, "backbone_embedding_dim": WIDTH, "hidden_size": 128,
    "input_embedding_dim": WIDTH, "action_horizon": 16, "max_seq_len": 16,
    "diffusion_model_cfg": {
        "num_layers": 8, "norm_type": "ada_norm", "output_dim": 128, "dropout": 0.0,
        "final_dropout": True, "interleave_self_attention": True, **STACK,
    },
    "vl_self_attention_cfg": {
        "num_layers": 2, "dropout": 0.0, "final_dropout": True, **STACK,
    },
}  # fmt: skip


def middle_qwen() -> dict[str, Any]:
    """Return the config of a Qwen3-VL of middle size."""
    config = TINY_QWEN()
    config["text_config"] |= {
        "hidden_size": WIDTH, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
        "vocab_size": VOCABULARY,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    }  # fmt: skip
    config["vision_config"] |= {
        "depth": 4, "hidden_size": 192, "intermediate_size": 512, "num_heads": 6,
        "out_hidden_size": WIDTH, "num_position_embeddings": 256,
    }  # fmt: skip
    return config


TINY_QWEN = tiny_groot.qwen_config
CASE = policy_groot.Case(
    {"observation.state": (7,), policy_groot.TOP: (3, 240, 320), policy_groot.WRIST: (3, 240, 320)},
    6,
    options={"chunk_size": 16, "n_action_steps": 16},
    changes=CHANGES,
    processor={"image_target_size": [128, 128], "image_crop_size": [116, 116]},
)


def updated(policy: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Callable[[], float]:
    """Return a function that updates a policy once and returns the loss."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0, fused=True)

    def update() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return update


def ways() -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name."""
    theirs, mine = policy_groot.build_peer(CASE), policy_groot.build_own(CASE)
    given, seen = policy_groot.batch(CASE), policy_groot.observation(CASE, 0)
    before, _ = policy_groot.peer_pipelines(CASE, theirs.config)
    own_before, _ = policy_groot.own_pipelines(CASE, mine.config)
    peer_batch, batch = before(dict(given)), own_before(dict(given))
    peer_seen, own_seen = before(dict(seen)), own_before(dict(seen))
    noise, share = policy_groot.noise(CASE, acts=False), torch.tensor(policy_groot.SHARES)[:, None]
    pads = {"action_is_pad": given["action_is_pad"].numpy()}
    ((term, count),) = mine.config.loss_weights(len(share), pads).items()
    kept = {frozen_key(n): v for n, v in mine.frozen_features(batch, "prefix").items()}
    theirs._groot_model.action_head._beta_dist = policy_groot._Times()

    def peer_loss() -> torch.Tensor:
        theirs.train()
        with mock.patch("torch.randn", return_value=noise):
            return theirs.forward(peer_batch)[0]

    def own_loss(given: dict[str, Any]) -> torch.Tensor:
        return mine.train()(given, noise=noise, time=share).terms[term].total / count

    return {
        "lerobot_update": updated(theirs, peer_loss),
        "kata_update": updated(mine, lambda: own_loss(batch)),
        "kata_update_cached": updated(mine, lambda: own_loss({**batch, **kept})),
        "lerobot_chunk": lambda: theirs.predict_action_chunk(peer_seen),
        "kata_chunk": lambda: mine.predict_chunk(own_seen),
        "lerobot_pipeline": lambda: before(dict(given)),
        "kata_pipeline": lambda: own_before(dict(given)),
    }


def main() -> None:
    """Measure, and write the result."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    with mock.patch.object(tiny_groot, "qwen_config", middle_qwen):
        measured = ways()
    losses = {name: measured[name]() for name in measured if "update" in name}
    spent: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, run in measured.items():
            began = time.process_time()
            run()
            spent[name].append(time.process_time() - began)
    medians = {name: round(statistics.median(values), 4) for name, values in spent.items()}
    found = {
        "benchmark": "groot_time",
        "unit": "CPU seconds on one thread, medians",
        "rounds": rounds,
        "batch": policy_groot.BATCH_SIZE,
        "load": round(os.getloadavg()[0], 1),
        "losses": losses,
        **medians,
        "update_x": round(medians["lerobot_update"] / medians["kata_update"], 2),
        "cached_update_x": round(medians["lerobot_update"] / medians["kata_update_cached"], 2),
        "chunk_x": round(medians["lerobot_chunk"] / medians["kata_chunk"], 2),
        "pipeline_x": round(medians["lerobot_pipeline"] / medians["kata_pipeline"], 2),
        "each": {name: [round(v, 4) for v in values] for name, values in spent.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "each"}, indent=1))


if __name__ == "__main__":
    main()
