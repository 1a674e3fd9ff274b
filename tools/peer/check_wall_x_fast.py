"""Shows that LeRobot's Wall-X learns actions as words and cannot act with them:
`check_wall_x_fast.py`, in the peer environment with kata's `src` on PYTHONPATH. kata refuses
`prediction_mode=fast` for as long as this is so; the check fails when LeRobot acts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import policy_wall_x
import tiny_fast
import tiny_qwen
import torch
from sides import files_folder, plain_stats

WORDS = tiny_fast.COUNT + len(tiny_fast.PAIRS)
EXPECTED = "TypeError: 'NoneType' object is not subscriptable"
"""transformers 5.4 to 5.5, which LeRobot 0.6.1 wants, give no `cache_position` where it is read."""


def case() -> policy_wall_x.Case:
    """Return a case whose model knows a word for each action token."""
    marks = [f"<|action_token_{number}|>" for number in range(WORDS)]
    policy_wall_x.MARKS = (*policy_wall_x.MARKS, *marks)
    policy_wall_x.ROWS = len(tiny_qwen.SPECIAL) + len(policy_wall_x.MARKS) + 256
    options = {"prediction_mode": "fast", "action_tokenizer_path": str(files_folder() / "fast")}
    made = policy_wall_x.Case(options=options)
    file = Path(policy_wall_x.folder(made)) / "tokenizer_config.json"
    told = json.loads(file.read_text())
    first = len(tiny_qwen.SPECIAL) + len(policy_wall_x.MARKS) - WORDS
    told |= {"action_token_start_index": first, "action_token_vocab_size": WORDS}
    file.write_text(json.dumps(told))
    return made


def built(asked: policy_wall_x.Case) -> Any:
    """Return LeRobot's policy, which reads the action tokenizer with a class that LeRobot has."""
    from lerobot.policies.molmoact2.molmoact2_hf_model import action_tokenizer
    from lerobot.policies.wall_x import modeling_wall_x

    known: Any = action_tokenizer.UniversalActionProcessor
    auto: Any = modeling_wall_x.AutoProcessor
    fast = str(tiny_fast.write(files_folder() / "fast"))

    class Known:
        @staticmethod
        def from_pretrained(name: str, **options: Any) -> Any:
            if name == fast:
                return known.from_pretrained_local(name)
            return auto.from_pretrained(name, **options)

    with mock.patch.object(modeling_wall_x, "AutoProcessor", Known):
        return policy_wall_x.build_peer(asked)


def main() -> int:
    torch.set_num_threads(1)
    from lerobot.policies.wall_x.processor_wall_x import make_wall_x_pre_post_processors

    asked = case()
    policy = built(asked)
    width = asked.inputs[policy_wall_x.STATE][0]
    before, _ = make_wall_x_pre_post_processors(policy.config, plain_stats(width, asked.action_dim))
    loss, _ = policy.train().forward(before(policy_wall_x.batch(asked)))
    learns = bool(loss.isfinite())
    print(f"{'PASS' if learns else 'FAIL'} wall_x fast: LeRobot learns, with a loss of {loss:.2f}")
    seen = {key: value[:1] for key, value in policy_wall_x.observation(asked, 0).items()}
    try:
        with policy_wall_x.in_float32():
            policy.predict_action_chunk(before(seen))
    except TypeError as error:
        found = f"TypeError: {error}"
    else:
        found = "none: LeRobot acts, so kata should too"
    print(
        f"{'PASS' if found == EXPECTED else 'FAIL'} wall_x fast: LeRobot's error in acting: {found}"
    )
    return int(not learns or found != EXPECTED)


if __name__ == "__main__":
    sys.exit(main())
