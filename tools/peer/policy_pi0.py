"""π0: cases, and what LeRobot and kata compute for them."""

from __future__ import annotations

import pi_cases
from pi_cases import BOTH, STATE, TOP, WRIST, Case, Sides

EXPERT = {"train_expert_only": True}

GOLDEN: dict[str, Case] = {
    "default": Case(),
    "expert_only": Case(options=EXPERT),
    "frozen_vision": Case(options={"freeze_vision_encoder": True}, words=(12, 12, 12)),
    "missing_camera": Case(absent=(WRIST,), options={"empty_cameras": 1}),
    "short_sentences": Case(words=(1, 2, 1), options={**EXPERT, "n_action_steps": 5}),
    "one_camera": Case({STATE: (7,), TOP: (3, 28, 28)}, 6, {"num_inference_steps": 10}),
}

CHECKPOINT = Case(max_length=24)
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "wide_expert": Case(options={"action_expert_variant": "gemma_2b"}),
    "larger_images": Case(options={"image_resolution": (42, 42)}),
    "other_times": Case(
        options={
            "time_sampling_beta_alpha": 2.5,
            "time_sampling_scale": 0.9,
            "min_period": 1e-2,
            "max_period": 2.0,
        }
    ),
    "recomputed": Case(options={"gradient_checkpointing": True}),
    "missing_first_camera": Case(dict(reversed(BOTH.items())), 1, absent=(TOP,)),
    "long_padding": Case(max_length=48, words=(30, 1, 48)),
}

SIDES = Sides("pi0", "PI0")
build_peer, build_own = SIDES.build_peer, SIDES.build_own
peer, own, steady = SIDES.peer, SIDES.own, pi_cases.steady
