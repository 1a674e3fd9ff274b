"""Qwen2.5-VL's config.json as a plain dict: known by name, or read. Torch-free."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kata.errors import PolicyError
from kata.spec import LANGUAGE_MASK, LANGUAGE_PLACES, LANGUAGE_TOKENS, Feature

UNIT = 28
"""Side in pixels of an image token."""

CONFIG = "config.json"
QWEN_3B = "Qwen/Qwen2.5-VL-3B-Instruct"

_KNOWN: dict[str, dict[str, Any]] = {
    QWEN_3B: {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "image_token_id": 151655,
        "video_token_id": 151656,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "dtype": "bfloat16",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "vocab_size": 151936,
            "max_position_embeddings": 128000,
            "use_sliding_window": False,
            "max_window_layers": 70,
            "attention_dropout": 0.0,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
                "mrope_section": [16, 24, 24],
            },
            "tie_word_embeddings": True,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "dtype": "bfloat16",
            "depth": 32,
            "hidden_size": 1280,
            "hidden_act": "silu",
            "intermediate_size": 3420,
            "num_heads": 16,
            "in_channels": 3,
            "out_hidden_size": 2048,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    }
}
"""Configs of models that policies can be built from without a network."""


def vlm_config(name: str) -> dict[str, Any]:
    """Return the config of a model by Hub name or folder; PolicyError if it cannot be had."""
    if name in _KNOWN:
        return copy.deepcopy(_KNOWN[name])
    # Here, since the package of steps imports torch.
    from kata.processors.pretrained import require_files, unreadable

    require_files(name, "a vision-language model's config", [(CONFIG,)])
    place = Path(name) / CONFIG
    if not place.is_file():
        place = _downloaded(name)
    try:
        read = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(name, "its config", error) from error
    if not isinstance(read, dict) or not read:
        raise unreadable(name, "its config", ValueError(f"{CONFIG} holds no options"))
    return read


def _downloaded(name: str) -> Path:
    """Return a model's config file from the Hub or the local cache."""
    from huggingface_hub import hf_hub_download  # slow to import, and needed by few runs
    from huggingface_hub.errors import HfHubHTTPError

    from kata.processors.pretrained import unreadable

    try:
        return Path(hf_hub_download(name, CONFIG))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise unreadable(name, "its config", error) from error


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the language model, which older files have beside the others."""
    return config.get("text_config") or config


def vocabulary(config: Mapping[str, Any]) -> int:
    """Return the rows of the table of tokens; PolicyError if the config does not say."""
    return int(required(text_config(config), "vocab_size"))


def required(config: Mapping[str, Any], name: str) -> Any:
    """Return an option of a model's config; PolicyError if it is absent."""
    if config.get(name) is None:
        raise PolicyError(
            f"a Qwen2.5-VL config without {name}",
            rule="config.json states the sizes of the text and vision models",
            remedy="copy the model's whole config.json",
        )
    return config[name]


def stated_dtype(config: Mapping[str, Any]) -> str:
    """Return the precision that the model's files have, as the config says; float32 without."""
    stated = config.get("dtype") or config.get("torch_dtype") or "float32"
    return str(stated).removeprefix("torch.")


def token_side(config: Mapping[str, Any]) -> int:
    """Return the side in pixels of what becomes one token of an image; PolicyError without."""
    vision: Mapping[str, Any] = required(config, "vision_config")
    return int(vision.get("patch_size", 14)) * int(vision.get("spatial_merge_size", 2))


def blank_prompt(
    batch: Mapping[str, Any],
    size: int,
    cameras: Mapping[str, Feature],
    fitted: Callable[[tuple[int, int]], tuple[int, int]],
    words: int,
    side: int = UNIT,
) -> dict[str, Any]:
    """Return a batch of plans with frames in the encoder's sizes, and with a prompt.

    Args:
        batch: what the policy's features give.
        size: samples.
        cameras: the policy's.
        fitted: gives height and width in the encoder of a frame of some size.
        words: tokens of the prompt beside its images.
        side: of a token in pixels.
    """
    # Here, since plans are made where torch is, and configs are read where it is not.
    import torch

    found, length = dict(batch), words
    for key, camera in cameras.items():
        height, width = fitted((camera.shape[1], camera.shape[2]))
        found[key] = torch.zeros(size, 3, height, width)
        length += height * width // side**2
    found[LANGUAGE_TOKENS] = torch.zeros(size, length, dtype=torch.int64)
    found[LANGUAGE_MASK] = torch.zeros(size, length, dtype=torch.bool)
    found[LANGUAGE_PLACES] = torch.zeros(size, 3, length, dtype=torch.int64)
    return found
