"""CPU time of one SAC update beside LeRobot 0.6.1's, in turns on the same batch, one thread.

PYTHONPATH=src .peer/bin/python benchmarks/rl_update_time.py [--rounds=5] [--out=<file>.json]

Runs in an environment with LeRobot. Both sides have LeRobot's default networks and train mode
(dropout on). Prints and keeps the medians over rounds of CPU milliseconds per update.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lerobot.configs.types import FeatureType as TheirType
from lerobot.configs.types import PolicyFeature
from lerobot.policies.gaussian_actor.configuration_gaussian_actor import GaussianActorConfig
from lerobot.policies.gaussian_actor.modeling_gaussian_actor import GaussianActorPolicy
from lerobot.rl.algorithms.sac import SACAlgorithm, SACAlgorithmConfig

from kata.policies.gaussian_actor.config import Config
from kata.policies.gaussian_actor.model import Policy
from kata.rl.batches import SeededDraws
from kata.rl.sac.algorithm import Sac, Transitions
from kata.rl.sac.config import SacConfig
from kata.spec import Feature, FeatureType

STATE, CAMERAS = "observation.state", ("observation.images.front", "observation.images.wrist")
CASES: dict[str, tuple[int, int, dict[str, Any], int]] = {
    "states": (256, 0, {}, 20),
    "states_gripper": (256, 0, {"num_discrete_actions": 3}, 20),
    "pictures_frozen": (64, 64, {"num_discrete_actions": 3}, 2),
    "pictures_trained": (64, 64, {"freeze_vision_encoder": False}, 2),
}
"""Transitions, pixels of a side of two cameras or 0, options of the policy, updates of a round."""


def batch(size: int, pixels: int, gripper: bool) -> dict[str, Any]:
    stream = torch.Generator().manual_seed(0)

    def seen() -> dict[str, torch.Tensor]:
        cameras = CAMERAS if pixels else ()
        shape = (size, 3, pixels, pixels)
        found = {key: torch.rand(shape, generator=stream) for key in cameras}
        return {**found, STATE: torch.randn(size, 18, generator=stream)}

    action = 2 * torch.rand(size, 3, generator=stream) - 1
    if gripper:
        choice = torch.randint(0, 3, (size, 1), generator=stream)
        action = torch.cat((action, choice.float()), 1)
    return {
        "state": seen(),
        "next_state": seen(),
        "action": action,
        "reward": torch.rand(size, generator=stream),
        "done": torch.zeros(size),
        "complementary_info": {"discrete_penalty": torch.zeros(size)},
    }


def theirs(pixels: int, options: dict[str, Any], given: dict[str, Any]) -> Callable[[], object]:
    shapes = {key: (TheirType.VISUAL, (3, pixels, pixels)) for key in CAMERAS if pixels}
    shapes[STATE] = (TheirType.STATE, (18,))
    config = GaussianActorConfig(
        device="cpu",
        input_features={key: PolicyFeature(*shape) for key, shape in shapes.items()},
        output_features={"action": PolicyFeature(TheirType.ACTION, (3,))},
        **options,
    )
    policy = GaussianActorPolicy(config).train()
    algorithm = SACAlgorithm(policy, SACAlgorithmConfig.from_policy_config(config))
    algorithm.make_optimizers_and_scheduler()
    return lambda: algorithm.update(iter([given]))


def ours(pixels: int, options: dict[str, Any], given: dict[str, Any]) -> Callable[[], object]:
    shapes = {key: (FeatureType.VISUAL, (3, pixels, pixels)) for key in CAMERAS if pixels}
    shapes[STATE] = (FeatureType.STATE, (18,))
    config = Config(
        device="cpu",
        input_features={key: Feature(*shape) for key, shape in shapes.items()},
        output_features={"action": Feature(FeatureType.ACTION, (3,))},
        **options,
    )
    algorithm = Sac(Policy(config), SacConfig())
    one = Transitions(
        given["state"], given["action"], given["reward"], given["done"], given["next_state"],
        given["complementary_info"]["discrete_penalty"], torch.zeros_like(given["reward"]),
    )  # fmt: skip
    cpu = torch.device("cpu")
    return lambda: algorithm.update([one], SeededDraws(0, algorithm.updates, cpu))


def cpu_ms(update: Callable[[], object], updates: int) -> float:
    began_s = time.process_time()
    for _ in range(updates):
        update()
    return (time.process_time() - began_s) / updates * 1e3


def measured(name: str, rounds: int) -> dict[str, Any]:
    size, pixels, options, updates = CASES[name]
    given = batch(size, pixels, "num_discrete_actions" in options)
    sides = {"lerobot": theirs(pixels, options, given), "kata": ours(pixels, options, given)}
    found: dict[str, list[float]] = {side: [] for side in sides}
    for update in sides.values():
        update()
    for _ in range(rounds):
        for side, update in sides.items():
            found[side].append(cpu_ms(update, updates))
    medians = {side: statistics.median(values) for side, values in found.items()}
    ratio = medians["lerobot"] / medians["kata"]
    return {"case": name, "cpu_ms": medians, "ratio": ratio, "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name in CASES:
        results.append(measured(name, asked.rounds))
        print(name, results[-1]["cpu_ms"], f"{results[-1]['ratio']:.2f}", flush=True)
    if asked.out:
        kept = {"load": os.getloadavg(), "torch": torch.__version__, "results": results}
        asked.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
