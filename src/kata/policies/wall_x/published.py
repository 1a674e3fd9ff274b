"""The published Wall-X's config.json as its authors' repository has it
(github.com/X-Square-Robot/wall-x, workspace/models_config). Torch-free.
"""

from __future__ import annotations

from typing import Any

from kata.policies.qwen.vlm_config import QWEN_3B, vlm_config

PUBLISHED: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_config": vlm_config(QWEN_3B)["vision_config"],
    "num_experts": 2,
    "experts": [
        {"hidden_size": 2048, "intermediate_size": 11008, "hidden_act": "silu"},
        {"hidden_size": 2048, "intermediate_size": 2048, "hidden_act": "silu"},
    ],
    "dim_inputs": [2048, 2048],
    "mlp_moe": True,
    "attention_moe": False,
    "dof_config": {"arms": 20},
    "agent_pos_config": {"arms": 20},
}
"""Its options. The numbers of states and actions are LeRobot's."""
