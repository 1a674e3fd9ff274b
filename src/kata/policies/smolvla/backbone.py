"""SmolVLM: sizes of the vision-language model, and its pretrained weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.nn.decoder import DecoderSizes, LlamaLayer, RMSNorm
from kata.nn.siglip import SiglipSizes
from kata.policies.smolvla.config import SMOLVLM
from kata.processors.pretrained import require_files, unreadable
from kata.processors.tensors import read_tensors

CONFIG = "config.json"


@dataclass(frozen=True)
class VlmSizes:
    """Sizes of a SmolVLM.

    Attributes:
        shuffle: patches along a side that are joined to one token.
        is_tied: True if the output map is the table of tokens.
    """

    vision: SiglipSizes
    text: DecoderSizes
    layers: int
    vocabulary: int
    shuffle: int
    is_tied: bool = False


SMOLVLM_500M = VlmSizes(
    vision=SiglipSizes(width=768, mlp=3072, layers=12, heads=12, image=512, patch=16),
    text=DecoderSizes(width=960, mlp=2560, heads=15, kv_heads=5, head_dim=64),
    layers=32,
    vocabulary=49280,
    shuffle=4,
)
"""Sizes of the default model, so that it can be built without a network."""


def vlm_sizes(name: str) -> VlmSizes:
    """Return the sizes of a model by Hub name or folder; PolicyError if it cannot be read."""
    if name == SMOLVLM:
        return SMOLVLM_500M
    require_files(name, "a vision-language model's config", [(CONFIG,)])
    from transformers import AutoConfig  # slow to import, and not needed for the default model

    try:
        config: Any = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise unreadable(name, "a vision-language model", error) from error
    if config.model_type != "smolvlm":
        raise PolicyError(
            f"policy.vlm_model_name={name}: a model of type {config.model_type}",
            rule="SmolVLA is built on a SmolVLM",
            remedy=f"--policy.vlm_model_name={SMOLVLM}",
        )
    vision, text = config.vision_config, config.text_config
    return VlmSizes(
        vision=SiglipSizes(
            width=vision.hidden_size,
            mlp=vision.intermediate_size,
            layers=vision.num_hidden_layers,
            heads=vision.num_attention_heads,
            image=vision.image_size,
            patch=vision.patch_size,
            eps=vision.layer_norm_eps,
        ),
        text=DecoderSizes(
            width=text.hidden_size,
            mlp=text.intermediate_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            eps=text.rms_norm_eps,
        ),
        layers=text.num_hidden_layers,
        vocabulary=text.vocab_size,
        shuffle=config.scale_factor,
        is_tied=bool(config.tie_word_embeddings),
    )


class TextModel(nn.Module):
    """The language model's table of tokens, first layers and last norm, which nothing reads."""

    def __init__(self, sizes: VlmSizes, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.text.width)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(LlamaLayer(sizes.text) for _ in range(layers))
        self.norm = RMSNorm(sizes.text.width, sizes.text.eps)


def mark_tokens(name: str) -> tuple[list[int], list[int]]:
    """Return the tokens that SmolVLM puts before and after an image."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise unreadable(name, "its tokenizer", error) from error
    around, whole = tokenizer.convert_tokens_to_ids(["<fake_token_around_image>", "<global-img>"])
    return [around, whole], [around]


def load_vlm(name: str, wanted: dict[str, Tensor]) -> None:
    """Fill a model's tensors with the pretrained ones.

    Args:
        name: a Hub name or a folder.
        wanted: tensors to fill, by their names in the model's files.

    Raises:
        PolicyError: the model cannot be read, or lacks a tensor or has another shape.
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.safetensors"]))
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise unreadable(name, "a vision-language model", error) from error
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= read_tensors(file)
    wrong = [
        key for key, own in wanted.items() if key not in found or found[key].shape != own.shape
    ]
    if wrong:
        raise PolicyError(
            f"{name}: {len(wrong)} of {len(wanted)} tensors absent or of another shape, the first "
            f"is {wrong[0]}",
            rule="a SmolVLM with its weights in safetensors files",
            remedy="--policy.load_vlm_weights=false with --policy.path, or a folder with the "
            "model's files",
        )
    with torch.no_grad():
        for key, own in wanted.items():
            own.copy_(found[key])
