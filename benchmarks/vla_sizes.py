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


def _smolvla(
    *,
    width: int,
    layers: int,
    words: int,
    vision: int,
    vision_heads: int,
    side: int,
    tokens: int,
    chunk: int,
) -> SmolvlaSizes:
    """Return the sizes of a SmolVLA.

    Args:
        width: of the language model, which has 15 heads.
        layers: that are read of the language model; it has twice as many.
        words: different tokens.
        vision: width of the image encoder.
        vision_heads: heads of its attention.
        side: of the square that frames are fitted to, in pixels.
        tokens: most of a sentence.
        chunk: actions of a chunk.
    """
    return SmolvlaSizes(
        smolvlm={
            "scale_factor": 4,
            "text_config": {
                "hidden_size": width, "intermediate_size": 8 * width // 3,
                "num_hidden_layers": 2 * layers, "num_attention_heads": 15,
                "num_key_value_heads": 5, "head_dim": width // 15, "vocab_size": words,
            },
            "vision_config": {
                "hidden_size": vision, "intermediate_size": 4 * vision,
                "num_hidden_layers": 3 * layers // 4, "num_attention_heads": vision_heads,
                "image_size": side, "patch_size": 16,
            },
        },
        smolvla={
            "chunk_size": chunk, "n_action_steps": chunk, "max_state_dim": 32,
            "max_action_dim": 32, "resize_imgs_with_padding": (side, side),
            "num_vlm_layers": layers, "num_steps": 10, "tokenizer_max_length": tokens,
        },
        frame=(3, side * 15 // 16, side * 5 // 4),
    )  # fmt: skip


TINY = _smolvla(
    width=120, layers=4, words=3080,
    vision=96, vision_heads=3, side=128, tokens=12, chunk=4,
)  # fmt: skip
MIDDLE = _smolvla(
    width=240, layers=8, words=12_320,
    vision=192, vision_heads=3, side=256, tokens=12, chunk=12,
)  # fmt: skip
PUBLISHED = _smolvla(
    width=960, layers=16, words=49_280,
    vision=768, vision_heads=12, side=512, tokens=48, chunk=50,
)  # fmt: skip
