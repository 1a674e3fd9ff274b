"""Options of π0, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kata.policies.config import SHARED_STEPS
from kata.policies.pi import PiConfig


@dataclass(frozen=True, kw_only=True)
class Config(PiConfig):
    """π0's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "pi0"

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy; sentences end with a newline."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        sentence = [("pi0_new_line_processor", {}), ("tokenizer_processor", self.tokenizer())]
        return [rename, add_axis, *sentence, move, self.relative_actions(), normalize]
