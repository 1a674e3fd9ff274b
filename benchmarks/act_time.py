"""CPU seconds that each policy takes for one chunk of actions: default options, one environment,
one thread.

    python benchmarks/act_time.py [--repeats=3] [--out=benchmarks/results/act_time.json]

Weights are random, so that nothing is fetched; what a chunk costs does not depend on them.
A chunk is what is executed before the policy is asked again.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from kata.policies import build_policy, config_class
from kata.policies.config import PolicyConfig
from kata.spec import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Feature, FeatureType

CAMERA = "observation.images.top"
DDIM = {"noise_scheduler_type": "DDIM", "num_inference_steps": 10}
CASES: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    "act": ("act", (480, 640), {}),
    "diffusion": ("diffusion", (96, 96), {}),
    "diffusion, DDIM with 10 steps": ("diffusion", (96, 96), DDIM),
    "multi_task_dit": ("multi_task_dit", (240, 320), {}),
    "multi_task_dit, DDIM with 10 steps": ("multi_task_dit", (240, 320), DDIM),
    "tdmpc": ("tdmpc", (84, 84), {}),
    "vqbet": ("vqbet", (96, 96), {}),
}
"""Policy, size of its one camera, options."""


def make_config(name: str, size: tuple[int, int], options: dict[str, Any]) -> PolicyConfig:
    config = config_class(name)(
        input_features={
            CAMERA: Feature(FeatureType.VISUAL, (3, *size)),
            STATE: Feature(FeatureType.STATE, (7,)),
        },
        output_features={ACTION: Feature(FeatureType.ACTION, (7,))},
        **options,
    )
    return config.without_downloads()


def observation(config: PolicyConfig) -> dict[str, torch.Tensor]:
    """Random observations of one environment, and a sentence for those who read one."""
    seen = {key: torch.rand(1, *feature.shape) for key, feature in config.input_features.items()}
    if (tokenizer := config.tokenizer()) is None:
        return seen
    length = tokenizer["max_length"]
    return {
        **seen,
        LANGUAGE_TOKENS: torch.full((1, length), 7),
        LANGUAGE_MASK: torch.ones(1, length, dtype=torch.bool),
    }


def measure(config: PolicyConfig, repeats: int) -> dict[str, Any]:
    """Median CPU seconds of a chunk, and what it holds."""
    policy = build_policy(config).eval()
    given, seconds, executed = observation(config), list[float](), 0
    for _ in range(repeats + 1):  # the first call makes what later ones use again
        state, began_s = policy.init_state(1), time.process_time()
        _, state = policy.act(given, state)
        seconds.append(time.process_time() - began_s)
        executed = 1 + (0 if state.queue is None else state.queue.shape[1])
    chunk_s = statistics.median(seconds[1:])
    return {
        "chunk_cpu_s": round(chunk_s, 4),
        "executed": executed,
        "cpu_s_per_action": round(chunk_s / executed, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/act_time.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, (policy, size, options) in CASES.items():
        found[name] = {
            "camera": list(size),
            **measure(make_config(policy, size, options), asked.repeats),
        }
        print(
            f"{name:36} {found[name]['chunk_cpu_s']:8.3f} s for {found[name]['executed']} actions",
            flush=True,
        )
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(
        json.dumps({**machine, "repeats": asked.repeats, "policies": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
