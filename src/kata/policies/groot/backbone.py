"""GR00T's backbone: sizes of a Qwen3-VL, and the weights of the base model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kata.errors import PolicyError
from kata.nn.decoder import DecoderSizes
from kata.nn.qwen3.text import Qwen3TextSizes
from kata.nn.qwen3.vision import Qwen3VisionSizes
from kata.policies.groot.base_model import COSMOS, GROOT
from kata.policies.load import fill_from_model
from kata.processors.pretrained import model_folder, require_files

CONFIG = "config.json"


@dataclass(frozen=True)
class BackboneSizes:
    """Sizes of a Qwen3-VL; `image_token` is the token in whose places images stand."""

    vision: Qwen3VisionSizes
    text: Qwen3TextSizes
    image_token: int


COSMOS_2B = BackboneSizes(
    vision=Qwen3VisionSizes(
        width=1024,
        mlp=4096,
        layers=24,
        heads=16,
        output=2048,
        patch=16,
        merge=2,
        frames=2,
        side=48,
        deepstack=(5, 11, 17),
    ),
    text=Qwen3TextSizes(
        decoder=DecoderSizes(width=2048, mlp=6144, heads=16, kv_heads=8, head_dim=128, eps=1e-6),
        layers=28,
        vocabulary=151_936,
        base=5e6,
        sections=(24, 20, 20),
    ),
    image_token=151_655,
)
"""Sizes of the published backbone, so that it can be built without a network."""


def backbone_sizes(name: str) -> BackboneSizes:
    """Return the sizes of a Qwen3-VL by Hub name or folder; PolicyError if it cannot be read."""
    if name.rstrip("/") == COSMOS:
        return COSMOS_2B
    require_files(name, "a Qwen3-VL's config", [(CONFIG,)])
    folder = model_folder(name, "a Qwen3-VL", [CONFIG])
    found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if found.get("model_type") != "qwen3_vl":
        raise PolicyError(
            f"{name}: a model of type {found.get('model_type')}",
            rule="GR00T N1.7 is built on a Qwen3-VL",
            remedy=f"--policy.base_model_path={GROOT}",
        )
    return _parsed(found)


def _parsed(found: Mapping[str, Any]) -> BackboneSizes:
    vision, text = found["vision_config"], found["text_config"]
    rope: Mapping[str, Any] = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return BackboneSizes(
        vision=Qwen3VisionSizes(
            width=vision["hidden_size"],
            mlp=vision["intermediate_size"],
            layers=vision["depth"],
            heads=vision["num_heads"],
            output=vision["out_hidden_size"],
            patch=vision["patch_size"],
            merge=vision["spatial_merge_size"],
            frames=vision["temporal_patch_size"],
            side=int(vision["num_position_embeddings"] ** 0.5),
            deepstack=tuple(vision["deepstack_visual_indexes"]),
        ),
        text=Qwen3TextSizes(
            decoder=DecoderSizes(
                width=text["hidden_size"],
                mlp=text["intermediate_size"],
                heads=text["num_attention_heads"],
                kv_heads=text["num_key_value_heads"],
                head_dim=text["head_dim"],
                eps=text["rms_norm_eps"],
            ),
            layers=text["num_hidden_layers"],
            vocabulary=text["vocab_size"],
            base=float(rope.get("rope_theta", text.get("rope_theta", 5e6))),
            sections=tuple(rope.get("mrope_section", (24, 20, 20))),
        ),
        image_token=found["image_token_id"],
    )


def load_base(name: str, wanted: Mapping[str, Tensor], ignored: str) -> None:
    """Fill a policy's tensors with those of a base model; see `fill_from_model`.

    Args:
        name: a raw folder, or a Hub name.
        wanted: tensors to fill, by their names in the model's files.
        ignored: the name of the output map, which files may have, and nothing reads.
    """
    fill_from_model(
        wanted,
        name,
        "a raw folder of GR00T N1.7",
        remedy="--policy.load_base_weights=false with --policy.path, or a whole folder",
        unread=[ignored],
    )
