"""Options of π0-FAST, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kata.config import option
from kata.policies.config import SHARED_STEPS, TokenizerSteps
from kata.policies.pi import PALIGEMMA, VARIANTS, PaliGemmaConfig
from kata.spec import ACTION_TOKEN_MASK, Draw

FAST = "lerobot/fast-action-tokenizer"
TERM = "ce_loss"


@dataclass(frozen=True, kw_only=True)
class Config(PaliGemmaConfig):
    """π0-FAST's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "pi0_fast"
    lora_targets: ClassVar[str] = r".*\.language_model\..*\.self_attn\.(q|v)_proj"

    tokenizer_steps: ClassVar[TokenizerSteps] = {
        "text_tokenizer_name": (
            ("tokenizer_processor", "tokenizer_name"),
            ("action_tokenizer_processor", "paligemma_tokenizer_name"),
        ),
        "action_tokenizer_name": (("action_tokenizer_processor", "action_tokenizer_name"),),
    }

    action_expert_variant: str = option(
        "gemma_300m",
        "A field of LeRobot's without effect: there is no action expert.",
        choices=VARIANTS,
    )
    tokenizer_max_length: int = 200
    text_tokenizer_name: str = option(
        PALIGEMMA, "Tokenizer of PaliGemma: a Hub name or a folder.", is_pretrained=True
    )
    action_tokenizer_name: str = option(
        FAST, "Tokenizer of actions: a Hub name, or a folder with its files.", is_pretrained=True
    )
    max_action_tokens: int = option(
        256, "Most tokens of a chunk in training, its beginning and end included.", least=2
    )
    fast_skip_tokens: int = option(
        128, "Last tokens of PaliGemma that stand for no action token.", least=0
    )
    temperature: float = option(
        0.0, "Temperature of the tokens that are drawn in acting; 0 takes the likeliest.", least=0
    )
    max_decoding_steps: int = option(256, "Most tokens of a chunk in acting.", least=1)
    validate_action_token_prefix: bool = option(
        True,
        "Take a chunk that does not begin with `Action:` for zeros. LeRobot ends with an error.",
    )
    use_kv_cache: bool = option(
        True, "Keep keys and values of written tokens. false computes the same, only slower."
    )
    freeze_vision_encoder: bool = option(False, "Keep the image encoder as it is.", is_own=True)
    allow_truncation: bool = option(
        True,
        "Cut chunks of more tokens than max_action_tokens, and count them; false ends the run.",
        is_own=True,
    )

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy; prompt and action tokens hold normalized numbers."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        actions = {
            "action_tokenizer_name": self.action_tokenizer_name,
            "max_action_tokens": self.max_action_tokens,
            "fast_skip_tokens": self.fast_skip_tokens,
            "paligemma_tokenizer_name": self.text_tokenizer_name,
            "allow_truncation": self.allow_truncation,
            "reads_actions": True,
        }
        told = [
            ("pi0_fast_prepare_state_tokenizer_processor_step", {}),
            ("tokenizer_processor", self.tokenizer()),
            ("action_tokenizer_processor", actions),
        ]
        return [rename, add_axis, self.relative_actions(), normalize, *told, move]

    def act_draws(self) -> dict[str, Draw]:
        """Return the numbers that tokens are drawn with, unless the likeliest are taken."""
        return (
            {} if self.temperature == 0 else {"share": Draw("uniform", (self.max_decoding_steps,))}
        )

    def action_tokens(self) -> int:
        """Return `max_action_tokens`."""
        return self.max_action_tokens

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return nothing: the number of tokens follows from the actions (`loss_counts`)."""
        del size, pads
        return {}

    def loss_counts(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of tokens of each sample that are predicted: all but the first."""
        return {TERM: batch[ACTION_TOKEN_MASK][:, 1:].sum(1)}
