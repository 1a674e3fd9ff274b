"""Work of an update of π0 and π0.5 beside LeRobot 0.6.1's, at full size, without computing it.

    PYTHONPATH=src .peer/bin/python benchmarks/pi_work.py OUT.json

It counts the operations of matrix products and convolutions in the forward and backward pass of one
sample with three cameras, and the bytes that autograd keeps in between beside the weights. All
tensors are on the meta device.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

CAMERAS = tuple(f"observation.images.camera_{number}" for number in range(3))
STATE, WIDTH, SIDE = "observation.state", 14, 224
TITLES = {"pi0": "PI0", "pi05": "PI05"}
MODES: dict[str, dict[str, Any]] = {"all": {}, "expert_only": {"train_expert_only": True}}


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
    policy = getattr(models, f"{TITLES[name]}Policy")(config)
    policy.train()
    tokens = torch.zeros(1, config.tokenizer_max_length, dtype=torch.int64)
    seen = [torch.zeros(1, 3, SIDE, SIDE) for _ in CAMERAS]
    present = [torch.ones(1, dtype=torch.bool) for _ in CAMERAS]
    state = [torch.zeros(1, 32)] if name == "pi0" else []
    actions = torch.zeros(1, config.chunk_size, 32)
    given = (seen, present, tokens, tokens.bool(), *state, actions, actions, torch.zeros(1))
    return counted(policy, lambda: policy.model.forward(*given)[..., :WIDTH].mean())


def own(name: str, options: dict[str, Any]) -> dict[str, float]:
    """Count kata's policy."""
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
    draws = {"noise": torch.zeros(1, 50, 32), "time": torch.zeros(1, 1)}
    return counted(policy, lambda: policy(batch, **draws).terms["flow_matching_loss"].total)


def main(out: Path) -> None:
    from kata.policies import policy_types

    found: dict[str, Any] = {"unit": "one sample, three cameras of 224x224, float32, meta device"}
    for name in (name for name in TITLES if name in policy_types()):
        for mode, options in MODES.items():
            with torch.device("meta"):
                sides = {"lerobot": peer(name, options), "kata": own(name, options)}
            ratio = {
                key: round(sides["kata"][key] / sides["lerobot"][key], 3)
                for key in ("gflop", "saved_mb")
            }
            found[f"{name} {mode}"] = {**sides, "ratio": ratio}
            print(name, mode, found[f"{name} {mode}"], flush=True)
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
