"""Folders that stand in for GR00T's on the Hub: a tiny Qwen3-VL without weights, and NVIDIA's raw
folder with the files beside its weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
VOCABULARY = 272
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou help.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)


def tokenizer() -> Tokenizer:
    """Every byte is a token, after the marks."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    return made


def qwen_config() -> dict[str, Any]:
    """Return what config.json holds: four layers of text, three of vision."""
    marks = {token: number for number, token in enumerate(SPECIALS)}
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_vl", "depth": 3, "hidden_size": 16, "intermediate_size": 24,
        "num_heads": 2, "out_hidden_size": 32, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "num_position_embeddings": 25,
        "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    return {
        "model_type": "qwen3_vl",
        "image_token_id": marks["<|image_pad|>"],
        "video_token_id": marks["<|video_pad|>"],
        "vision_start_token_id": marks["<|vision_start|>"],
        "vision_end_token_id": marks["<|vision_end|>"],
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": vision,
    }


def write_qwen(folder: Path) -> Path:
    """Write the folder of the backbone."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    images = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": 65536, "shortest_edge": 1024},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        **patches,
    }
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor"}
    files: dict[str, dict[str, Any]] = {
        "config.json": qwen_config(),
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "model_max_length": 1024,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
        },
        "preprocessor_config.json": images,
        "video_preprocessor_config.json": {**video, **patches},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def groot_config(backbone: str) -> dict[str, Any]:
    """Return what NVIDIA's config.json holds, at tiny size and without dropout."""
    stack = {"positional_embeddings": None, "num_attention_heads": 4, "dropout": 0.0}
    transformer = {
        "num_layers": 6, "attention_head_dim": 6, "norm_type": "ada_norm", "final_dropout": True,
        "output_dim": 16, "interleave_self_attention": True, **stack,
    }  # fmt: skip
    return {
        "model_type": "Gr00tN1d7", "architectures": ["GR00TN17"], "model_name": backbone,
        "backbone_model_type": "qwen", "select_layer": 3, "backbone_embedding_dim": 32,
        "hidden_size": 16, "input_embedding_dim": 24, "max_state_dim": 7, "max_action_dim": 6,
        "action_horizon": 6, "max_num_embodiments": 12, "max_seq_len": 16,
        "model_dtype": "float32", "dtype": "float32", "state_dropout_prob": 0.0,
        "diffusion_model_cfg": transformer,
        "vl_self_attention_cfg": {
            "num_layers": 2, "attention_head_dim": 8, "final_dropout": True, **stack,
        },
    }  # fmt: skip


def write_raw(
    folder: Path,
    backbone: Path,
    *,
    changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    statistics: dict[str, Any] | None = None,
) -> Path:
    """Write NVIDIA's folder without weights.

    Args:
        folder: to write to.
        backbone: the folder of the Qwen3-VL.
        changes: of config.json.
        options: of NVIDIA's processor, in processor_config.json.
        statistics: of robots, in statistics.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images = {"image_target_size": [64, 64], "image_crop_size": [58, 58]}
    files = {
        "config.json": {**groot_config(str(backbone)), **(changes or {})},
        "processor_config.json": {"processor_kwargs": {**images, **(options or {})}},
        "statistics.json": statistics or {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
