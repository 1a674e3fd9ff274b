"""Qwen2.5-VL: sizes from its config, and its pretrained weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from kata.errors import PolicyError
from kata.nn.decoder import DecoderSizes
from kata.nn.qwen.text import TextSizes
from kata.nn.qwen.vision import VisionSizes
from kata.policies.load import fill_from_model
from kata.policies.qwen.vlm_config import required, text_config
from kata.policies.rules import Rule, refuse_broken_rules


def text_sizes(config: Mapping[str, Any]) -> TextSizes:
    """Return the sizes of the language model; PolicyError for options that kata cannot compute."""
    text = text_config(config)
    rope: Mapping[str, Any] = text.get("rope_parameters") or text.get("rope_scaling") or {}
    heads, width = int(required(text, "num_attention_heads")), int(required(text, "hidden_size"))
    refuse_broken_rules(_text_rules(text, rope))
    sections = tuple(int(pairs) for pairs in required(rope, "mrope_section"))
    head = width // heads
    if 2 * sum(sections) != head:
        raise PolicyError(
            f"mrope_section={list(sections)}",
            rule=f"sections of half a head, {head // 2} pairs of numbers",
            remedy="copy the model's whole config.json",
        )
    return TextSizes(
        DecoderSizes(
            width=width,
            mlp=int(required(text, "intermediate_size")),
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=head,
            eps=float(text.get("rms_norm_eps", 1e-5)),
        ),
        layers=int(required(text, "num_hidden_layers")),
        vocabulary=int(required(text, "vocab_size")),
        sections=sections,
        base=float(rope.get("rope_theta") or text.get("rope_theta") or 1e6),
    )


def _text_rules(text: Mapping[str, Any], rope: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield rules on options of the language model that change what it computes."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    for name, broken in (
        ("use_sliding_window", bool(text.get("use_sliding_window"))),
        ("attention_dropout", bool(text.get("attention_dropout"))),
        ("hidden_act", text.get("hidden_act", "silu") != "silu"),
        ("rope_type", kind not in ("default", "mrope")),
    ):
        yield (
            broken,
            f"a Qwen2.5-VL with {name}={text.get(name, kind)}",
            "published models see all tokens, have SwiGLU, no dropout, and plain rotary positions",
            "a model without this option",
        )


def vision_sizes(config: Mapping[str, Any], out: int) -> VisionSizes:
    """Return the sizes of the image encoder.

    Args:
        config: the model's.
        out: width of the language model.

    Raises:
        PolicyError: the config lacks a size, or has one that does not fit.
    """
    vision: Mapping[str, Any] = required(config, "vision_config")
    sizes = VisionSizes(
        width=int(required(vision, "hidden_size")),
        mlp=int(required(vision, "intermediate_size")),
        layers=int(required(vision, "depth")),
        heads=int(required(vision, "num_heads")),
        out=int(required(vision, "out_hidden_size")),
        whole=tuple(int(i) for i in required(vision, "fullatt_block_indexes")),
        patch=int(vision.get("patch_size", 14)),
        merge=int(vision.get("spatial_merge_size", 2)),
        frames=int(vision.get("temporal_patch_size", 2)),
        window=int(vision.get("window_size", 112)),
    )
    rules: list[Rule] = [
        (
            vision.get("hidden_act", "silu") != "silu",
            f"an image encoder with hidden_act={vision.get('hidden_act')}",
            "published models have SwiGLU",
            "a model without this option",
        ),
        (
            sizes.window < sizes.patch * sizes.merge,
            f"an image encoder with window_size={sizes.window} and tokens of "
            f"{sizes.patch * sizes.merge} pixels",
            "a window holds a token or more",
            "copy the model's whole config.json",
        ),
        (
            sizes.out != out,
            f"an image encoder with out_hidden_size={sizes.out}",
            f"tokens as wide as the language model's, {out}",
            "copy the model's whole config.json",
        ),
    ]
    refuse_broken_rules(rules)
    return sizes


def load_qwen(name: str, wanted: dict[str, Tensor]) -> None:
    """Fill a model's tensors with those of a pretrained Qwen2.5-VL; see `fill_from_model`.

    Where they have transformers' names of today, `model.language_model.` and `model.visual.`, files
    of older versions may have `model.` and `visual.`.
    """
    is_current = any(key.startswith("model.language_model.") for key in wanted)
    fill_from_model(
        wanted,
        name,
        "a Qwen2.5-VL",
        remedy="--policy.path with a checkpoint, or a folder with the model's files",
        current=_current if is_current else str,
    )


def _current(stored: str) -> str:
    """Return the name that transformers gives today to a tensor of a file."""
    if stored.startswith("visual."):
        return f"model.{stored}"
    if stored.startswith("model.") and stored.split(".")[1] not in ("language_model", "visual"):
        return f"model.language_model.{stored.removeprefix('model.')}"
    return stored
