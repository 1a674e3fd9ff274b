"""A folder that stands in for a Qwen2.5-VL on the Hub: config, tokenizer and processor files of a
tiny model, without weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
VOCABULARY = 300
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}"
    "{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)
"""What Qwen's chat template makes of messages that are lists of images and texts."""

CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def tokenizer(extra: Sequence[str] = ()) -> Tokenizer:
    """Every byte is a token, after the marks."""
    specials = [*SPECIAL, *extra]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*specials, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(specials)
    return made


def config(
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    top: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what config.json holds: two layers of text, three of vision, windows of four."""
    own_text = {
        "model_type": "qwen2_5_vl_text", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [1, 2, 1],
        },
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
        **(text or {}),
    }  # fmt: skip
    own_vision = {
        "model_type": "qwen2_5_vl", "depth": 3, "hidden_size": 16, "intermediate_size": 24,
        "num_heads": 2, "out_hidden_size": 32, "patch_size": 14, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "window_size": 56, "fullatt_block_indexes": [1],
        "tokens_per_second": 2, **(vision or {}),
    }  # fmt: skip
    return {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "image_token_id": SPECIAL.index("<|image_pad|>"),
        "video_token_id": SPECIAL.index("<|video_pad|>"),
        "vision_start_token_id": SPECIAL.index("<|vision_start|>"),
        "vision_end_token_id": SPECIAL.index("<|vision_end|>"),
        "tie_word_embeddings": True,
        "text_config": own_text,
        "vision_config": own_vision,
        **(top or {}),
    }


def write(folder: Path, extra: Sequence[str] = (), **sizes: dict[str, Any]) -> Path:
    """Write the folder; `extra` are marks of the tokenizer, `sizes` are those of `config`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(extra).save(str(folder / "tokenizer.json"))
    made = config(**sizes)
    shared = {
        "processor_class": "Qwen2_5_VLProcessor", "temporal_patch_size": 2,
        "patch_size": made["vision_config"]["patch_size"],
        "merge_size": made["vision_config"]["spatial_merge_size"],
    }  # fmt: skip
    pixels = {"min_pixels": 4 * 28**2, "max_pixels": 16384 * 28**2}
    files: dict[str, dict[str, Any]] = {
        "config.json": made,
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "model_max_length": 2048,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor", **shared, **pixels, **CLIP,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen2VLVideoProcessor", **shared,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
