"""Large policies at sizes with which a step on a CPU takes about a second.

Their options come from the comparison with LeRobot (tools/peer); tiny folders stand in for those of
the Hub.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kata.nn.decoder import DecoderSizes
from kata.nn.siglip import SiglipSizes
from kata.policies import paligemma

SMALL = ("smolvla", "pi0", "pi05", "pi0_fast", "xvla", "groot", "eo1", "wall_x")
SMALL_SMOLVLA = {"resize_imgs_with_padding": (64, 64), "num_vlm_layers": 6}
SMALL_PI: dict[str, Any] = {
    "image_resolution": (112, 112),
    "tokenizer_max_length": 16,
    **dict.fromkeys(("chunk_size", "n_action_steps"), 10),
}
SMALL_FAST: dict[str, Any] = {**SMALL_PI, "max_action_tokens": 48}
SMALL_QWEN: dict[str, Any] = {
    "text": {
        "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [4, 6, 6],
        },
    },
    "vision": {
        "depth": 4, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4,
        "out_hidden_size": 256, "fullatt_block_indexes": [3], "window_size": 112,
    },
}  # fmt: skip
"""EO-1's and Wall-X's model."""

EXPERTS: dict[str, Any] = {
    "num_experts": 2, "dim_inputs": [256, 256], "mlp_moe": True, "attention_moe": False,
    "dof_config": {"arm": 20},
    "experts": [
        {"hidden_size": 256, "intermediate_size": 768, "hidden_act": "silu"},
        {"hidden_size": 256, "intermediate_size": 256, "hidden_act": "silu"},
    ],
}  # fmt: skip
SMALL_XVLA: dict[str, Any] = {
    "action_mode": "auto", "hidden_size": 256, "depth": 6, "num_heads": 8, "len_soft_prompts": 8,
    "dim_time": 32, "max_len_seq": 256, "chunk_size": 32, "n_action_steps": 32,
}  # fmt: skip
SMALL_FLORENCE: dict[str, Any] = {
    "vision_config": {
        "embed_dim": [32, 64, 128, 256], "depths": [1, 1, 3, 1], "num_heads": [2, 4, 8, 8],
        "num_groups": [2, 4, 8, 8], "window_size": 6, "projection_dim": 192,
    },
    "text_config": {
        "d_model": 192, "encoder_layers": 4, "encoder_ffn_dim": 768, "decoder_ffn_dim": 768,
        "max_position_embeddings": 256,
    },
}  # fmt: skip


def tiny(name: str) -> ModuleType:
    """Return a module of tools/peer."""
    folder = str(Path(__file__).parents[1] / "tools/peer")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def shrink_paligemma() -> None:
    """Let π0, π0.5 and π0-FAST be small in this process: no option gives PaliGemma's sizes."""
    gemma: dict[str, DecoderSizes] = {}
    for name, width in (("gemma_2b", 256), ("gemma_300m", 128)):
        gemma[name] = DecoderSizes(width, 4 * width, heads=8, kv_heads=1, head_dim=32, eps=1e-6)
    vision = SiglipSizes(width=128, mlp=512, layers=6, heads=4, image=112, patch=14)
    paligemma.SIZES = paligemma.PiSizes(vision, gemma, layers=6, vocabulary=320)


def small_options(policy: str, folder: Path) -> dict[str, Any]:
    """Return the options of a small policy; what stands in for the Hub is written to `folder`."""
    if policy == "smolvla":
        written = tiny("tiny_smolvlm").write(folder / "smolvlm")
        return {"vlm_model_name": str(written), **SMALL_SMOLVLA}
    if policy in ("pi0", "pi05"):
        return dict(SMALL_PI)
    if policy == "pi0_fast":
        return dict(SMALL_FAST)
    if policy == "xvla":
        return {**SMALL_XVLA, "florence_config": tiny("policy_xvla").florence(**SMALL_FLORENCE)}
    if policy == "eo1":
        pixels = {"image_min_pixels": 4 * 28**2, "image_max_pixels": 16 * 28**2}
        return {"vlm_config": tiny("tiny_qwen").config(**SMALL_QWEN), "dtype": "float32", **pixels}
    if policy == "wall_x":
        sizes = {**SMALL_QWEN, "text": {**SMALL_QWEN["text"], **EXPERTS}}
        base = {**tiny("tiny_qwen").config(**sizes), "agent_pos_config": {"arm": 20}}
        return {"base_config": base, "dtype": "float32"}
    assert policy == "groot"
    return _small_groot(folder)


STACK = {"positional_embeddings": None, "num_attention_heads": 8, "attention_head_dim": 32}
GROOT: dict[str, Any] = {
    "select_layer": 4, "backbone_embedding_dim": 256, "hidden_size": 128,
    "input_embedding_dim": 256, "action_horizon": 16, "max_seq_len": 16,
    "max_state_dim": 16, "max_action_dim": 16,
    "diffusion_model_cfg": {
        "num_layers": 8, "norm_type": "ada_norm", "output_dim": 128, "dropout": 0.0,
        "final_dropout": True, "interleave_self_attention": True, **STACK,
    },
    "vl_self_attention_cfg": {
        "num_layers": 2, "dropout": 0.0, "final_dropout": True, **STACK,
    },
}  # fmt: skip
QWEN3: dict[str, dict[str, Any]] = {
    "text_config": {
        "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 4, "hidden_size": 192, "intermediate_size": 512, "num_heads": 6,
        "out_hidden_size": 256, "num_position_embeddings": 256,
    },
}  # fmt: skip


def _small_groot(folder: Path) -> dict[str, Any]:
    """Write GR00T's folder and its backbone's, and return the options that name them."""
    made = tiny("tiny_groot")
    backbone = made.write_qwen(folder / "qwen3")
    config = made.qwen_config()
    for part, sizes in QWEN3.items():
        config[part] |= sizes
    (backbone / "config.json").write_text(json.dumps(config))
    images = {"image_target_size": [128, 128], "image_crop_size": [116, 116]}
    raw = made.write_raw(folder / "groot", backbone, changes=GROOT, options=images)
    return {
        "base_model_path": str(raw),
        "text_tokenizer_name": str(backbone),
        "use_bf16": False,
        **dict.fromkeys(("max_state_dim", "max_action_dim"), 16),
        **dict.fromkeys(("chunk_size", "n_action_steps"), 16),
    }
