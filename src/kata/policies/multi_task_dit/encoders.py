"""CLIP's image and text encoders (arXiv 2103.00020) from transformers, under LeRobot's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.policies.multi_task_dit.config import CLIP, Config
from kata.processors.pretrained import require_files, unreadable

CONFIG = "config.json"
VISION, TEXT = "vision_model", "text_model"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
BASE_PATCH16: dict[str, dict[str, Any]] = {
    VISION: {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,  # noqa: E501
        "image_size": 224, "patch_size": 16, "hidden_act": "quick_gelu", "projection_dim": 512,
    },
    TEXT: {
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,  # noqa: E501
        "vocab_size": 49408, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "projection_dim": 512,  # noqa: E501
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
    },
}  # fmt: skip
"""The config.json of `CLIP`, so that it can be built without a network.

Its special-token ids differ from the tokenizer's: an end token of 2 makes transformers take the
highest token of a sentence as its end.
"""


def _clip(kind: Any, part: str, name: str, *, pretrained: bool) -> nn.ModuleDict:
    """A model of this class in float32 as {part: model}; without `pretrained` its weights are
    random, and only its config is read, that of the default model not even.

    Up to transformers 5.5, CLIPTextModel and CLIPVisionModel hold their network under that name,
    later ones are it; LeRobot's files have the name.
    """
    what = "an encoder with its weights" if pretrained else "an encoder's config"
    require_files(name, what, [(CONFIG, file) for file in WEIGHTS] if pretrained else [(CONFIG,)])
    try:
        if pretrained:
            model = kind.from_pretrained(name, dtype=torch.float32)
        elif name == CLIP:
            model = kind(kind.config_class(**BASE_PATCH16[part]))
        else:
            model = kind(kind.config_class.from_pretrained(name))
    except (OSError, ValueError) as error:
        raise unreadable(name, "an encoder", error) from error
    return nn.ModuleDict({part: dict(model.named_children()).get(part, model)})


class VisionEncoder(nn.Module):
    """Frames to the class token of the last layer."""

    def __init__(self, config: Config) -> None:
        from transformers import CLIPVisionModel  # slow to import, and needed by few policies

        super().__init__()
        name = config.vision_encoder_name
        self.model = _clip(CLIPVisionModel, VISION, name, pretrained=config.pretrained_encoders)
        clip: Any = self.model[VISION]
        self.width: int = clip.config.hidden_size
        # The class token is taken before this norm; it would wait for a gradient that never comes.
        clip.post_layernorm.requires_grad_(False)
        first = next(iter(config.cameras.values()))
        size = config.image_crop_shape or config.image_resize_shape or first.shape[1:]
        side: int = clip.config.image_size
        if tuple(size) != (side, side):
            raise PolicyError(
                f"frames of {size[0]}x{size[1]} for {name}",
                rule=f"this encoder takes {side}x{side}",
                remedy=f"--policy.image_resize_shape=[{side},{side}] "
                "--policy.image_crop_shape=null, or a larger "
                f"resize and --policy.image_crop_shape=[{side},{side}]",
            )

    def forward(self, frames: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, width)."""
        return self.model[VISION](pixel_values=frames).last_hidden_state[:, 0]


class TextEncoder(nn.Module):
    """Tokens to a vector: CLIP's, which stays as it is, and a linear map that learns."""

    def __init__(self, config: Config) -> None:
        from transformers import CLIPTextModel

        super().__init__()
        name, length = config.text_encoder_name, config.tokenizer_max_length
        self.text_encoder = _clip(CLIPTextModel, TEXT, name, pretrained=config.pretrained_encoders)
        clip: Any = self.text_encoder[TEXT].requires_grad_(False)
        most: int = clip.config.max_position_embeddings
        if length > most:
            raise PolicyError(
                f"policy.tokenizer_max_length={length}",
                rule=f"{name} reads at most {most} tokens",
                remedy=f"--policy.tokenizer_max_length={most}",
            )
        self.projection = nn.Linear(clip.config.hidden_size, config.hidden_dim)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, L) -> (B, hidden_dim)."""
        with torch.no_grad():
            pooled = self.text_encoder[TEXT](input_ids=tokens, attention_mask=mask).pooler_output
        return self.projection(pooled)
