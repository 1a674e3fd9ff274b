"""Options of real-time chunking, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kata.config import Options, option
from kata.config.option import changed_option
from kata.errors import PolicyError
from kata.policies.rules import Rule

GUIDED, TRAINED = "guided", "trained"


@dataclass(frozen=True, kw_only=True)
class RtcConfig(Options):
    """Real-time chunking (arXiv 2506.07339): each chunk continues the one before it."""

    at: ClassVar[str] = "policy.rtc_config."
    refused_with = PolicyError

    enabled: bool = option(True, "Let each chunk continue the one before it.")
    mode: str = option(
        GUIDED,
        "How: guided pulls a chunk towards what is left over of the last one; trained begins it "
        "with the actions that are executed meanwhile (policy.rtc_training_max_delay).",
        choices=(GUIDED, TRAINED),
        is_own=True,
    )
    prefix_attention_schedule: str = option(
        "LINEAR",
        "How the pull falls from the actions that are executed anyway to the execution horizon.",
        choices=("ZEROS", "ONES", "LINEAR", "EXP"),
    )
    max_guidance_weight: float = option(10.0, "Largest weight of the pull.", above=0)
    execution_horizon: int = option(
        10, "Actions from the beginning of a chunk that follow the last chunk.", least=1
    )
    debug: bool = option(
        False, "LeRobot's record of denoising steps. kata keeps none; true is refused."
    )
    debug_maxlen: int = option(100, "Steps in that record.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.debug:
            raise PolicyError(
                "policy.rtc_config.debug=true",
                rule="kata keeps no record of denoising steps",
                remedy="--policy.rtc_config.debug=false",
            )


@dataclass(frozen=True, kw_only=True)
class RtcChanges(Options):
    """Options of real-time chunking over those of a policy; null leaves the policy's own."""

    at: ClassVar[str] = "policy.rtc_config."
    refused_with = PolicyError

    enabled: bool | None = changed_option(RtcConfig, "enabled")
    mode: str | None = changed_option(RtcConfig, "mode")
    prefix_attention_schedule: str | None = changed_option(RtcConfig, "prefix_attention_schedule")
    max_guidance_weight: float | None = changed_option(RtcConfig, "max_guidance_weight")
    execution_horizon: int | None = changed_option(RtcConfig, "execution_horizon")
    debug: bool | None = changed_option(RtcConfig, "debug")
    debug_maxlen: int | None = changed_option(RtcConfig, "debug_maxlen")

    def over(self, own: RtcConfig | None) -> RtcConfig:
        """Return a policy's own options, or the defaults, with these over them."""
        asked = {name: value for name, value in self.__dict__.items() if value is not None}
        return dataclasses.replace(own or RtcConfig(), **asked)


def delay_rules(
    delay: int, *, chunk: int, every: int, rtc: RtcConfig | None, trained: int
) -> Iterator[Rule]:
    """Yield rules on acting with predictions that take time.

    Args:
        delay: steps from an observation to the chunk that follows from it.
        chunk: actions of a chunk.
        every: steps from one prediction to the next.
        rtc: options of real-time chunking, or None.
        trained: longest beginning of a chunk that the policy was trained with.
    """
    yield (
        delay > every,
        f"eval.inference_delay={delay} with policy.n_action_steps={every}",
        "a chunk is there before the next one is predicted",
        f"--policy.n_action_steps={delay} or more",
    )
    yield (
        delay + every > chunk,
        f"eval.inference_delay={delay} with policy.n_action_steps={every} and "
        f"policy.chunk_size={chunk}",
        "a chunk lasts until the next one is there",
        f"--policy.n_action_steps={chunk - delay} or less",
    )
    if rtc is None or not rtc.enabled:
        return
    yield (
        every == chunk,
        f"policy.rtc_config with policy.n_action_steps={every} and policy.chunk_size={chunk}",
        "something is left over of a chunk when the next one is predicted",
        f"--policy.n_action_steps={max(chunk // 2, 1)}, or --policy.rtc_config.enabled=false",
    )
    yield (
        rtc.mode == TRAINED and trained == 0,
        "policy.rtc_config.mode=trained",
        "the policy was trained with policy.rtc_training_max_delay above 0, as pi05 can be",
        "--policy.rtc_config.mode=guided",
    )
    yield (
        rtc.mode == TRAINED and delay > trained,
        f"eval.inference_delay={delay} with policy.rtc_training_max_delay={trained}",
        "a chunk begins with no more actions than in training",
        "--policy.rtc_config.mode=guided, or a policy trained with a larger "
        "--policy.rtc_training_max_delay",
    )
