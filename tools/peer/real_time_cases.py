"""Chunks that continue others, in LeRobot and in kata: each schedule, delays, horizons, lengths."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from numbers_of import tensor
from torch import Tensor


@dataclass(frozen=True)
class Continuation:
    """Options of real-time chunking, steps of a prediction, and actions left over."""

    options: dict[str, Any] = field(default_factory=dict)
    delay: int = 2
    left: int = 6


def scheduled(name: str, **options: Any) -> dict[str, Any]:
    return {"prefix_attention_schedule": name, **options}


CONTINUATIONS = {
    "zeros": Continuation(scheduled("ZEROS")),
    "ones": Continuation(scheduled("ONES", execution_horizon=4), delay=1),
    "linear": Continuation(),
    "exponential": Continuation(scheduled("EXP", execution_horizon=5), delay=1, left=8),
    "no_delay": Continuation({"execution_horizon": 3}, delay=0, left=3),
    "weak": Continuation({"max_guidance_weight": 1.5, "execution_horizon": 2}, delay=3, left=5),
    "nothing_left": Continuation(left=0),
    "switched_off": Continuation({"enabled": False}),
}
CHUNK = 8
"""Actions of a chunk in these cases."""


def left_over(continuation: Continuation, size: int, dims: int) -> Tensor:
    return 0.7 * tensor("left over", (size, CHUNK, dims))[:, CHUNK - continuation.left :]


def peer_chunks(policy: Any, given: dict[str, Tensor], noise: Tensor) -> dict[str, Tensor]:
    """LeRobot's chunks by the names of CONTINUATIONS."""
    from lerobot.configs import RTCAttentionSchedule
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    found: dict[str, Tensor] = {}
    for name, case in CONTINUATIONS.items():
        options = dict(case.options)
        if "prefix_attention_schedule" in options:
            options["prefix_attention_schedule"] = RTCAttentionSchedule[
                options["prefix_attention_schedule"]
            ]
        policy.config.rtc_config = RTCConfig(**options)
        policy.init_rtc_processor()
        dims = policy.config.output_features["action"].shape[0]
        left = left_over(case, len(noise), dims) if case.left else None
        found[f"continued/{name}"] = policy.predict_action_chunk(
            dict(given), noise=noise, inference_delay=case.delay, prev_chunk_left_over=left
        )
    policy.config.rtc_config = None
    policy.init_rtc_processor()
    return found


def own_chunks(policy: Any, given: dict[str, Tensor], noise: Tensor) -> dict[str, Tensor]:
    """kata's chunks by the names of CONTINUATIONS."""
    from kata.policies.rtc import RtcConfig

    plain = policy.options
    found: dict[str, Tensor] = {}
    for name, case in CONTINUATIONS.items():
        policy.options = dataclasses.replace(plain, rtc_config=RtcConfig(**case.options))
        left = left_over(case, len(noise), plain.action.shape[0])
        found[f"continued/{name}"] = policy.continued(given, left, case.delay, noise=noise)
    policy.options = plain
    return found
