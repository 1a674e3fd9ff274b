"""Names of X-VLA's published checkpoints, which hold Florence-2 in Microsoft's layout."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

VLM = "model.vlm."
BLOCK = rf"{VLM}vision_tower.blocks.\d+.\d+.(spatial_block|channel_block)."
RULES = (
    (rf"({VLM}vision_tower.convs.\d+.)proj.", r"\1conv."),
    (rf"({BLOCK})(conv[12]).fn.dw.", r"\1\3."),
    (rf"({BLOCK})(?:window_attn|channel_attn).norm.", r"\1norm1."),
    (rf"({BLOCK})(window_attn|channel_attn).fn.", r"\1\3."),
    (rf"({BLOCK})ffn.norm.", r"\1norm2."),
    (rf"({BLOCK})ffn.fn.net.", r"\1ffn."),
    (rf"({VLM})image_proj_norm.", r"\1multi_modal_projector.image_proj_norm."),
    (rf"({VLM})image_pos_embed.", r"\1multi_modal_projector.image_position_embed."),
    (rf"({VLM})visual_temporal_embed.", r"\1multi_modal_projector.visual_temporal_embed."),
    (rf"({VLM}language_model.)model.", r"\1"),
)
"""Beginnings of Microsoft's names, and transformers'."""

COMPILED = [(re.compile(old.replace(".", r"\.")), new) for old, new in RULES]
PROJECTION = f"{VLM}image_projection"
UNREAD = f"{VLM}language_model.final_logits_bias"


def modern(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors under today's names; those that have them stay as they are."""
    is_old = PROJECTION in found or any(
        name.startswith(f"{VLM}language_model.model.") for name in found
    )
    if not is_old:
        return dict(found)
    renamed: dict[str, Tensor] = {}
    for name, tensor in found.items():
        if name == PROJECTION:
            # A table that tokens are multiplied with; a linear map holds it transposed.
            renamed[f"{VLM}multi_modal_projector.image_projection.weight"] = tensor.t().contiguous()
        elif name != UNREAD:
            renamed[_today(name)] = tensor
    return renamed


def _today(name: str) -> str:
    for old, new in COMPILED:
        renamed, count = old.subn(new, name, count=1)
        if count:
            return renamed
    return name
