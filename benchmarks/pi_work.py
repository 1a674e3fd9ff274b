"""Work of an update of π0, π0.5 and π0-FAST beside LeRobot 0.6.1, at full size, not computed.

    PYTHONPATH=src .peer/bin/python benchmarks/pi_work.py OUT.json [POLICY ...]

It counts the operations of matrix products and convolutions in the forward and backward pass of one
sample with three cameras, and the bytes that autograd keeps in between beside the weights. All
tensors are on the meta device. π0-FAST is counted with a chunk of 256 tokens, to which LeRobot pads
each, and with one of 96: kata pads to the longest of a batch.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

CAMERAS = tuple(f"observation.images.camera_{number}" for number in range(3))
STATE, WIDTH, SIDE = "observation.state", 14, 224
TITLES = {"pi0": "PI0", "pi05": "PI05", "pi0_fast": "PI0Fast"}
EXPERT: dict[str, dict[str, Any]] = {"all": {}, "expert_only": {"train_expert_only": True}}
LENGTHS = {"256 tokens": 256, "96 tokens": 96}
"""Action tokens of π0-FAST that kata computes."""


def counted(model: nn.Module, loss_of: Callable[[], Tensor]) -> dict[str, float]:
    """Return GFLOP of both passes, and MB that autograd keeps between them."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no storage takes the number of another

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
            alive.append(tensor.detach())
        return tensor

    forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of()
    with backward:
        loss.backward()
    gflop = [each.get_total_flops() / 1e9 for each in (forward, backward)]
    return {
        "forward_gflop": round(gflop[0], 1),
        "backward_gflop": round(gflop[1], 1),
        "gflop": round(sum(gflop), 1),
        "saved_mb": round(sum(kept.values()) / 1e6, 1),
    }


def peer(name: str, options: dict[str, Any]) -> dict[str, float]:
    """Count LeRobot's policy."""
    from lerobot.configs import FeatureType, PolicyFeature

    package = f"lerobot.policies.{name}"
    configs = importlib.import_module(f"{package}.configuration_{name}")
    models = importlib.import_module(f"{package}.modeling_{name}")
    cameras = {key: PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE)) for key in CAMERAS}
    config = getattr(configs, f"{TITLES[name]}Config")(
        device="cpu",
        input_features={**cameras, STATE: PolicyFeature(FeatureType.STATE, (WIDTH,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (WIDTH,))},
        **options,
    )
    config.device = "meta"
    with local_tokenizers(models):
        policy = getattr(models, f"{TITLES[name]}Policy")(config)
    policy.train()
    tokens = torch.zeros(1, config.tokenizer_max_length, dtype=torch.int64)
    seen = [torch.zeros(1, 3, SIDE, SIDE) for _ in CAMERAS]
    present = [torch.ones(1, dtype=torch.bool) for _ in CAMERAS]
    if name == "pi0_fast":
        written = torch.zeros(1, config.max_action_tokens, dtype=torch.int64)
        read = (seen, present, tokens, tokens.bool(), written, written.bool())
        return counted(policy, lambda: policy.model.forward(*read)["loss"])
    state = [torch.zeros(1, 32)] if name == "pi0" else []
    actions = torch.zeros(1, config.chunk_size, 32)
    given = (seen, present, tokens, tokens.bool(), *state, actions, actions, torch.zeros(1))
    return counted(policy, lambda: policy.model.forward(*given)[..., :WIDTH].mean())


def local_tokenizers(models: Any) -> AbstractContextManager[Any]:
    """LeRobot's π0-FAST is built without tokenizers inside."""
    if "AutoProcessor" not in vars(models):
        return nullcontext()
    return mock.patch.multiple(models, AutoProcessor=mock.Mock(), AutoTokenizer=mock.Mock())


def own(name: str, options: dict[str, Any], length: int = 0) -> dict[str, float]:
    """Count kata's policy, π0-FAST with `length` action tokens."""
    from kata.policies import build_policy, config_class
    from kata.spec import Feature, FeatureType

    cameras = {key: Feature(FeatureType.VISUAL, (3, SIDE, SIDE)) for key in CAMERAS}
    config = config_class(name)(
        input_features={**cameras, STATE: Feature(FeatureType.STATE, (WIDTH,))},
        output_features={"action": Feature(FeatureType.ACTION, (WIDTH,))},
        **options,
    )
    policy = build_policy(config)
    policy.train()
    tokens = torch.zeros(1, vars(config)["tokenizer_max_length"], dtype=torch.int64)
    batch = {
        **{key: torch.zeros(1, 3, SIDE, SIDE) for key in CAMERAS},
        STATE: torch.zeros(1, WIDTH),
        "action": torch.zeros(1, 50, WIDTH),
        "observation.language.tokens": tokens,
        "observation.language.attention_mask": tokens.bool(),
    }
    if length:
        written = torch.zeros(1, length, dtype=torch.int64)
        batch |= {"action.tokens": written, "action.token_mask": written.bool()}
    draws = {"noise": torch.zeros(1, 50, 32), "time": torch.zeros(1, 1)}
    (term,) = policy(batch, **draws).terms
    return counted(policy, lambda: policy(batch, **draws).terms[term].total)


def main(out: Path, names: list[str]) -> None:
    found: dict[str, Any] = {"unit": "one sample, three cameras of 224x224, float32, meta device"}
    for name in names or TITLES:
        for mode in LENGTHS if name == "pi0_fast" else EXPERT:
            options, length = EXPERT.get(mode, {}), LENGTHS.get(mode, 0)
            with torch.device("meta"):
                sides = {"lerobot": peer(name, options), "kata": own(name, options, length)}
            ratio = {
                key: round(sides["kata"][key] / sides["lerobot"][key], 3)
                for key in ("gflop", "saved_mb")
            }
            found[f"{name} {mode}"] = {**sides, "ratio": ratio}
            print(name, mode, found[f"{name} {mode}"], flush=True)
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
