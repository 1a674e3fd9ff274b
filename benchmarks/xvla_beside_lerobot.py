"""CPU seconds of X-VLA beside LeRobot's, in one process and in turns: an update and a chunk.

    PYTHONPATH=src:tools/peer .peer/bin/python benchmarks/xvla_beside_lerobot.py [--rounds=10]

Runs in the environment of `make peer`. Both sides have the same weights, batch and draws, and no
dropout. One thread. An update is the loss and its gradients; both sides have torch's optimizer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import policy_xvla as cases
import torch

RESULT = Path(__file__).parent / "results/xvla_beside_lerobot_20261123.json"
SIZE = (3, 128, 128)
MIDDLE: dict[str, Any] = {
    "action_mode": "ee6d", "hidden_size": 256, "depth": 6, "num_heads": 8, "len_soft_prompts": 8,
    "dim_time": 32, "max_len_seq": 256, "chunk_size": 32, "n_action_steps": 32,
    "num_denoising_steps": 10,
    "florence_config": cases.florence(
        vision_config={
            "embed_dim": [32, 64, 128, 256], "depths": [1, 1, 3, 1], "num_heads": [2, 4, 8, 8],
            "num_groups": [2, 4, 8, 8], "window_size": 6, "projection_dim": 192,
        },
        text_config={
            "d_model": 192, "encoder_layers": 4, "encoder_ffn_dim": 768, "decoder_ffn_dim": 768,
        },
    ),
}  # fmt: skip
CASES = {
    "tiny": cases.Case(action_dim=20, options={"action_mode": "ee6d"}),
    "middle": cases.Case(
        {cases.STATE: (5,), cases.TOP: SIZE, cases.WRIST: SIZE}, action_dim=20, options=MIDDLE
    ),
    "middle, Florence-2 frozen": cases.Case(
        {cases.STATE: (5,), cases.TOP: SIZE, cases.WRIST: SIZE},
        action_dim=20,
        options={**MIDDLE, **cases.FROZEN},
    ),
}


def sides(case: cases.Case) -> dict[str, dict[str, Callable[[], Any]]]:
    """Return what is timed, by side and name."""
    peer, own = cases.build_peer(case).train(), cases.build_own(case).train()
    batch, noise = cases.batch(case), cases.noise(case)
    place = torch.arange(cases.BATCH_SIZE)[:, None] / cases.BATCH_SIZE
    seen = {key: value for key, value in batch.items() if key != "action"}
    counts = own.config.loss_weights(cases.BATCH_SIZE, {})

    def peer_update() -> None:
        peer.train().zero_grad(set_to_none=True)
        peer.forward(batch)[0].backward()

    def own_update() -> None:
        own.train().zero_grad(set_to_none=True)
        terms = own(batch, noise=noise, time=cases.SHARE + place).terms
        sum(term.scale * term.total / counts[name] for name, term in terms.items()).backward()

    def peer_chunk() -> None:
        peer.eval().predict_action_chunk(seen)

    def own_chunk() -> None:
        own.eval().predict_chunk(seen, noise=noise)

    return {
        "lerobot": {"update": peer_update, "chunk": peer_chunk},
        "kata": {"update": own_update, "chunk": own_chunk},
    }


def measured(case: cases.Case, rounds: int) -> dict[str, Any]:
    """Return CPU seconds of both sides, medians and least, and the median of the pairs' ratios."""
    timed, found = sides(case), dict[str, Any]()
    for name in ("update", "chunk"):
        seconds: dict[str, list[float]] = {side: [] for side in timed}
        for number in range(rounds + 1):
            # Each round begins with the other side.
            for side in sorted(timed, reverse=bool(number % 2)):
                began_s = time.process_time()
                timed[side][name]()
                if number:  # the first call makes what later ones use again
                    seconds[side].append(time.process_time() - began_s)
        pairs = zip(seconds["kata"], seconds["lerobot"], strict=True)
        found[name] = {
            **{
                f"{side}_cpu_s": round(statistics.median(all_of), 5)
                for side, all_of in seconds.items()
            },
            **{f"{side}_least_cpu_s": round(min(all_of), 5) for side, all_of in seconds.items()},
            "kata_of_lerobot": round(statistics.median(own / peer for own, peer in pairs), 3),
        }
    return found


def main() -> None:
    """Measure all cases and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with mock.patch("kata.policies.xvla.transformer.DROPOUT", 0.0):
        found = {name: measured(case, asked.rounds) for name, case in CASES.items()}
    result = {
        "command": "PYTHONPATH=src:tools/peer .peer/bin/python benchmarks/xvla_beside_lerobot.py "
        f"--rounds={asked.rounds}",
        "machine": {
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in ("lerobot", "torch", "transformers")},
        "batch": cases.BATCH_SIZE,
        "cases": found,
    }
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
