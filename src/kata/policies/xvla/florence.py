"""Florence-2's sizes from X-VLA's option `florence_config`, in transformers' form or Microsoft's.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from kata.errors import PolicyError
from kata.nn.florence.sizes import ACTIVATIONS, BartSizes, DavitSizes, DavitStage
from kata.policies.rules import Rule, refuse_broken_rules

AT = "policy.florence_config"

FLORENCE_2_LARGE: dict[str, Any] = {
    "vision_config": {
        "embed_dim": [256, 512, 1024, 2048],
        "depths": [1, 1, 9, 1],
        "num_heads": [8, 16, 32, 64],
        "num_groups": [8, 16, 32, 64],
        "patch_size": [7, 3, 3, 3],
        "patch_stride": [4, 2, 2, 2],
        "patch_padding": [3, 1, 1, 1],
        "patch_prenorm": [False, True, True, True],
        "window_size": 12,
        "projection_dim": 1024,
        "max_temporal_embeddings": 100,
        "max_position_embeddings": 50,
    },
    "text_config": {
        "model_type": "bart",
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "vocab_size": 51289,
        "max_position_embeddings": 4096,
    },
}
"""The sizes that an empty `florence_config` stands for."""

VISION_DEFAULTS: dict[str, Any] = {
    "in_channels": 3,
    "depths": [1, 1, 9, 1],
    "patch_size": [7, 3, 3, 3],
    "patch_stride": [4, 2, 2, 2],
    "patch_padding": [3, 1, 1, 1],
    "patch_prenorm": [False, True, True, True],
    "embed_dim": [128, 256, 512, 1024],
    "num_heads": [4, 8, 16, 32],
    "num_groups": [4, 8, 16, 32],
    "window_size": 12,
    "drop_path_rate": 0.1,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "activation_function": "gelu",
    "projection_dim": 1024,
    "max_temporal_embeddings": 100,
    "max_position_embeddings": 50,
    "initializer_range": 0.02,
}
TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "encoder_layerdrop": 0.0,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "init_std": 0.02,
    "scale_embedding": False,
    "pad_token_id": 1,
}
"""Values of names that a config leaves out; they are those of transformers."""

TEXT_TYPES = ("bart", "florence2_language")
VISION_TYPES = ("davit", "florence_vision")
SOURCES = ["spatial_avg_pool", "temporal_avg_pool"]


def florence_sizes(given: Mapping[str, Any]) -> tuple[DavitSizes, BartSizes]:
    """Return the sizes of the image encoder and of the text encoder.

    Raises: PolicyError for sizes that do not fit each other, or a part that X-VLA cannot have.
    """
    whole = given or FLORENCE_2_LARGE
    for name in ("vision_config", "text_config"):
        if not isinstance(whole.get(name), Mapping):
            raise PolicyError(
                f"{AT}: no {name}",
                rule="vision_config and text_config give Florence-2's sizes",
                remedy=f"leave out --{AT} for Florence-2-large, or take the policy's own with "
                "--policy.path",
            )
    vision = {**VISION_DEFAULTS, **_native(whole["vision_config"])}
    text = {**TEXT_DEFAULTS, **whole["text_config"]}
    refuse_broken_rules(_type_rules(whole, vision, text))
    refuse_broken_rules(_length_rules(vision))
    davit, bart = _davit(vision), _bart(text)
    refuse_broken_rules(_fit_rules(davit, bart))
    return davit, bart


def _native(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the image encoder's config under transformers' names."""
    found = dict(vision)
    if "dim_embed" in found:
        found["embed_dim"] = found.pop("dim_embed")
    for name, own in (
        ("image_pos_embed", "max_pos_embeddings"),
        ("visual_temporal_embedding", "max_temporal_embeddings"),
    ):
        if found.get(name) is not None:
            target = "max_position_embeddings" if name == "image_pos_embed" else own
            found[target] = found[name].get(own)
    return found


def _type_rules(
    whole: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any]
) -> Iterator[Rule]:
    """Yield rules on kinds of parts."""
    positions: Mapping[str, Any] = vision.get("image_pos_embed") or {"type": "learned_abs_2d"}
    frames: Mapping[str, Any] = vision.get("visual_temporal_embedding") or {"type": "COSINE"}
    taken = vision.get("image_feature_source") or SOURCES
    found = (
        ("vision_config.model_type", whole["vision_config"].get("model_type"), VISION_TYPES),
        ("text_config.model_type", whole["text_config"].get("model_type"), TEXT_TYPES),
        ("vision_config.image_pos_embed.type", positions.get("type"), ("learned_abs_2d",)),
        ("vision_config.visual_temporal_embedding.type", frames.get("type"), ("COSINE",)),
        ("vision_config.image_feature_source", list(taken), (SOURCES,)),
        ("vision_config.in_channels", vision["in_channels"], (3,)),
        ("vision_config.activation_function", vision["activation_function"], ACTIVATIONS),
        ("text_config.activation_function", text["activation_function"], ACTIVATIONS),
        ("text_config.encoder_layerdrop", text["encoder_layerdrop"], (0.0,)),
    )
    for name, value, allowed in found:
        yield (
            value is not None and value not in allowed,
            f"{AT}.{name}={value}",
            f"one of: {', '.join(map(str, allowed))}",
            "the florence_config of an X-VLA checkpoint",
        )


def _length_rules(vision: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield the rule that each list of the image encoder has an entry per stage."""
    stages = len(vision["embed_dim"])
    for name in (
        "depths", "num_heads", "num_groups", "patch_size", "patch_stride", "patch_padding",
        "patch_prenorm",
    ):  # fmt: skip
        yield (
            len(vision[name]) != stages,
            f"{AT}.vision_config.{name}={vision[name]}",
            f"an entry for each of the {stages} stages of embed_dim",
            f"give {name} {stages} entries",
        )


def _davit(vision: Mapping[str, Any]) -> DavitSizes:
    widths: list[int] = list(vision["embed_dim"])
    stages: list[DavitStage] = []
    inputs = [vision["in_channels"], *widths]
    for number, (before, width) in enumerate(pairwise(inputs)):
        stages.append(
            DavitStage(
                inputs=before,
                width=width,
                depth=vision["depths"][number],
                heads=vision["num_heads"][number],
                groups=vision["num_groups"][number],
                patch=vision["patch_size"][number],
                stride=vision["patch_stride"][number],
                padding=vision["patch_padding"][number],
                norm_first=vision["patch_prenorm"][number],
            )
        )
    return DavitSizes(
        stages=tuple(stages),
        window=vision["window_size"],
        mlp_ratio=vision["mlp_ratio"],
        drop_path=vision["drop_path_rate"],
        qkv_bias=vision["qkv_bias"],
        activation=vision["activation_function"],
        projected=vision["projection_dim"],
        positions=vision["max_position_embeddings"],
        frames=vision["max_temporal_embeddings"],
        std=vision["initializer_range"],
    )


def _bart(text: Mapping[str, Any]) -> BartSizes:
    return BartSizes(
        width=text["d_model"],
        layers=text["encoder_layers"],
        heads=text["encoder_attention_heads"],
        mlp=text["encoder_ffn_dim"],
        vocabulary=text["vocab_size"],
        positions=text["max_position_embeddings"],
        pad=text["pad_token_id"],
        scales=text["scale_embedding"],
        activation=text["activation_function"],
        dropout=text["dropout"],
        attention_dropout=text["attention_dropout"],
        activation_dropout=text["activation_dropout"],
        std=text["init_std"],
    )


def _fit_rules(davit: DavitSizes, bart: BartSizes) -> Iterator[Rule]:
    """Yield rules on sizes that must divide or equal each other."""
    yield (
        davit.projected != bart.width,
        f"{AT}: projection_dim={davit.projected}, d_model={bart.width}",
        "tokens of images and of text stand in one sequence, and are equally wide",
        f"projection_dim={bart.width}",
    )
    for number, stage in enumerate(davit.stages):
        for name, parts in (("num_heads", stage.heads), ("num_groups", stage.groups)):
            yield (
                stage.width % parts != 0,
                f"{AT}.vision_config.{name}[{number}]={parts}",
                f"a divisor of embed_dim[{number}]={stage.width}",
                "the florence_config of an X-VLA checkpoint",
            )
    yield (
        bart.width % bart.heads != 0,
        f"{AT}.text_config.encoder_attention_heads={bart.heads}",
        f"a divisor of d_model={bart.width}",
        "the florence_config of an X-VLA checkpoint",
    )
