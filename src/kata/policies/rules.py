"""Rules on options, checked one after the other. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kata.errors import PolicyError

if TYPE_CHECKING:
    from kata.policies.config import PolicyConfig

Rule = tuple[bool, str, str, str]
"""(broken, what, rule, remedy)"""


def refuse_broken_rules(rules: Iterable[Rule]) -> None:
    """Raise PolicyError for the first rule that is broken; those after it are not looked at."""
    for broken, what, rule, remedy in rules:
        if broken:
            raise PolicyError(what, rule=rule, remedy=remedy)


def refuse_feature_cache(
    policy: PolicyConfig, kind: str, *, is_augmented: bool, in_shards: bool
) -> None:
    """Raise PolicyError where `dataset.cache` asks for features that are none, or that change.

    Args:
        policy: says what of it is frozen.
        kind: of the features.
        is_augmented: True if frames are augmented.
        in_shards: True if ranks hold shards of the weights.
    """
    offered = policy.frozen_features()
    asked = f"dataset.cache={kind}"
    if kind not in offered:
        raise PolicyError(
            f"{asked} with policy.type={policy.type}, which trains that part or has none",
            rule=f"features come from a frozen part; here: {', '.join(offered) or 'none'}",
            remedy=_remedy(policy, offered),
        )
    if is_augmented:
        raise PolicyError(
            f"{asked} with dataset.image_transforms.enable=true",
            rule="augmented frames differ in every epoch, and features are kept for all epochs",
            remedy="leave out one of the two; --dataset.cache=disk keeps frames as recorded",
        )
    if in_shards:
        raise PolicyError(
            f"{asked} with weights in shards",
            rule="ranks find different samples in the cache, and shards want equally many calls",
            remedy="--parallelism.dp_shard=1 and no deepspeed.zero_stage, or --dataset.cache=disk",
        )


def _remedy(policy: PolicyConfig, offered: dict[str, tuple[str, ...]]) -> str:
    if offered:
        return f"--dataset.cache={next(iter(offered))}"
    names = ("train_expert_only", "freeze_vision_encoder")
    freezing = [f"--policy.{name}=true" for name in names if name in vars(policy)]
    return (
        f"{' or '.join(freezing)}, or --dataset.cache=disk" if freezing else "--dataset.cache=disk"
    )
