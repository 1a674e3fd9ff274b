"""Options of π0.5, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kata.config import option
from kata.policies.config import SHARED_STEPS
from kata.policies.pi import PiConfig
from kata.policies.rules import Rule
from kata.spec import FeatureType, NormMode


def _modes() -> dict[str, NormMode]:
    vectors = {kind.value: NormMode.QUANTILES for kind in (FeatureType.STATE, FeatureType.ACTION)}
    return {FeatureType.VISUAL.value: NormMode.IDENTITY, **vectors}


@dataclass(frozen=True, kw_only=True)
class Config(PiConfig):
    """π0.5's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "pi05"

    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    tokenizer_max_length: int = 200
    rtc_training_max_delay: int = option(
        0,
        "Most actions, drawn for each sample, that a chunk in training begins with: those that a "
        "robot executes while it predicts. 0 trains without; newer versions of LeRobot have it.",
        least=0,
        is_own=True,
    )

    @property
    def most_given(self) -> int:
        """Return `rtc_training_max_delay`."""
        return self.rtc_training_max_delay

    def chunk_rules(self) -> Iterator[Rule]:
        """Yield rules on the numbers of steps."""
        yield from super().chunk_rules()
        yield (
            self.rtc_training_max_delay >= self.chunk_size,
            f"policy.rtc_training_max_delay={self.rtc_training_max_delay} with "
            f"policy.chunk_size={self.chunk_size}",
            "some actions of a chunk are left to predict",
            f"--policy.rtc_training_max_delay={self.chunk_size - 1} or less",
        )

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy; the prompt holds the normalized state."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        told = ("pi05_prepare_state_tokenizer_processor_step", {})
        sentence = [told, ("tokenizer_processor", self.tokenizer())]
        return [rename, add_axis, self.relative_actions(), normalize, *sentence, move]
