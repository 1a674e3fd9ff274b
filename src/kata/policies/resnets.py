"""The ResNets that policies use as image encoders, and the rules for naming them. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

RESNET_WEIGHTS: dict[str, tuple[str, ...]] = {
    "resnet18": ("IMAGENET1K_V1", "DEFAULT"),
    "resnet34": ("IMAGENET1K_V1", "DEFAULT"),
    "resnet50": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "resnet101": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "resnet152": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
}
"""Backbones and torchvision's weights for each."""


def resnet_rules(
    backbone: str, weights: str | None, *, group_norm: bool = False
) -> Iterator[tuple[bool, str, str, str]]:
    """Yield rules on `vision_backbone`, `pretrained_backbone_weights` and `use_group_norm`."""
    family = f"ResNet{backbone.removeprefix('resnet')}_Weights."
    known = RESNET_WEIGHTS[backbone]
    yield (
        weights is not None and weights.removeprefix(family) not in known,
        f"policy.pretrained_backbone_weights={weights} with policy.vision_backbone={backbone}",
        f"one of: {', '.join(family + name for name in known)}, null",
        f"--policy.pretrained_backbone_weights={family}{known[0]}",
    )
    yield (
        group_norm and weights is not None,
        "policy.use_group_norm=true with policy.pretrained_backbone_weights",
        "ImageNet's weights belong to batch norm",
        "--policy.pretrained_backbone_weights=null, or --policy.use_group_norm=false",
    )
