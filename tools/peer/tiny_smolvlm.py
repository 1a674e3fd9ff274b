"""A folder that stands in for a SmolVLM on the Hub: config, tokenizer and processor files of a tiny
model, without weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

MARKS = ("<|im_start|>", "<end_of_utterance>", "<|im_end|>")
IMAGE_MARKS = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "image_token": "<image>",
}
VOCABULARY = 300
SIDE = 64


def config() -> dict[str, Any]:
    """Return what config.json holds: six layers of text, two of vision at 64 pixels."""
    text = {
        "model_type": "llama", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 6,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": 100000,
        "max_position_embeddings": 512, "pad_token_id": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "model_type": "smolvlm_vision", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE, "patch_size": 16,
    }  # fmt: skip
    return {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "scale_factor": 2,
        "image_token_id": 5,
        "tie_word_embeddings": False,
        "pad_token_id": 2,
        "text_config": text,
        "vision_config": vision,
    }


def tokenizer(words: tuple[str, ...] = ()) -> Tokenizer:
    """Every byte is a token, after the marks; so is each of the words."""
    specials = [*MARKS, *IMAGE_MARKS.values(), "<video>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*specials, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(specials)
    made.add_tokens(list(words))
    return made


def write(folder: Path, words: tuple[str, ...] = ()) -> Path:
    """Write the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(words).save(str(folder / "tokenizer.json"))
    bos, eos, pad = MARKS
    size = {"longest_edge": SIDE}
    images = {"processor_class": "SmolVLMProcessor", "size": size, "max_image_size": size}
    files: dict[str, dict[str, Any]] = {
        "config.json": config(),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "model_max_length": 512,
            "bos_token": bos,
            "eos_token": eos,
            "pad_token": pad,
            **IMAGE_MARKS,
            "extra_special_tokens": IMAGE_MARKS,
        },
        "preprocessor_config.json": {"image_processor_type": "SmolVLMImageProcessor", **images},
        "video_preprocessor_config.json": {
            "video_processor_type": "SmolVLMVideoProcessor",
            **images,
        },
        "processor_config.json": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
