"""Sizes of the vision-language-action policies that are compared with LeRobot's; see
`benchmarks/vla_beside_lerobot.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PI_SIZES: dict[str, Any] = {
    "VOCABULARY": 257_152 // 8, "VOCABULARIES": {"pi0_fast": 257_152 // 8}, "LAYERS": 6,
    "WIDTHS": {"gemma_2b": (256, 2048), "gemma_300m": (128, 512)}, "HEAD_DIM": 32,
    "VISION": {"width": 144, "mlp": 538, "layers": 9, "heads": 16, "image": 112, "patch": 14},
}  # fmt: skip
PI: dict[str, Any] = {
    "chunk_size": 12, "n_action_steps": 12, "max_state_dim": 32, "max_action_dim": 32,
    "image_resolution": (112, 112),
}  # fmt: skip


@dataclass(frozen=True)
class SmolvlaSizes:
    """Sizes of a SmolVLA and of its frames.

    Attributes:
        smolvlm: those of the model that it is built on, as its config.json names them.
        smolvla: the policy's options.
        frame: shape of a camera's frame.
    """

    smolvlm: dict[str, Any]
    smolvla: dict[str, Any]
    frame: tuple[int, int, int]


TINY = SmolvlaSizes(
    smolvlm={
        "scale_factor": 4,
        "text_config": {
            "hidden_size": 120, "intermediate_size": 320, "num_hidden_layers": 8,
            "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 8,
            "vocab_size": 49_280 // 16,
        },
        "vision_config": {
            "hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 3,
            "num_attention_heads": 3, "image_size": 128, "patch_size": 16,
        },
    },
    smolvla={
        "chunk_size": 4, "n_action_steps": 4, "max_state_dim": 32, "max_action_dim": 32,
        "resize_imgs_with_padding": (128, 128), "num_vlm_layers": 4, "num_steps": 10,
        "tokenizer_max_length": 12,
    },
    frame=(3, 120, 160),
)  # fmt: skip
MIDDLE = SmolvlaSizes(
    smolvlm={
        "scale_factor": 4,
        "text_config": {
            "hidden_size": 240, "intermediate_size": 640, "num_hidden_layers": 16,
            "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 16,
            "vocab_size": 49_280 // 4,
        },
        "vision_config": {
            "hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 6,
            "num_attention_heads": 3, "image_size": 256, "patch_size": 16,
        },
    },
    smolvla={
        "chunk_size": 12, "n_action_steps": 12, "max_state_dim": 32, "max_action_dim": 32,
        "resize_imgs_with_padding": (256, 256), "num_vlm_layers": 8, "num_steps": 10,
        "tokenizer_max_length": 12,
    },
    frame=(3, 240, 320),
)  # fmt: skip
PUBLISHED = SmolvlaSizes(
    smolvlm={
        "scale_factor": 4,
        "text_config": {
            "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
            "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64,
            "vocab_size": 49_280,
        },
        "vision_config": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
        },
    },
    smolvla={
        "chunk_size": 50, "n_action_steps": 50, "max_state_dim": 32, "max_action_dim": 32,
        "resize_imgs_with_padding": (512, 512), "num_vlm_layers": 16, "num_steps": 10,
        "tokenizer_max_length": 48,
    },
    frame=(3, 480, 640),
)  # fmt: skip
