"""Shows that LeRobot's Wall-X learns actions as words and cannot act with them:
`check_wall_x_fast.py`, in the peer environment with kata's `src` on PYTHONPATH. The comparison of
policies asks LeRobot's network for the words itself for as long as this is so; the check fails when
LeRobot acts. In this way it also compares the words of checkpoints, each side's read by the other.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import policy_wall_x
import torch
import wall_x_words
from sides import plain_pipeline, plain_stats

EXPECTED = "TypeError: 'NoneType' object is not subscriptable"
"""transformers 5.4 to 5.5, which LeRobot 0.6.1 wants, give no `cache_position` where it is read."""


def read_by_lerobot(folder: Path) -> Any:
    """Return LeRobot's policy of a checkpoint."""
    from lerobot.policies.wall_x.modeling_wall_x import WallXPolicy

    with policy_wall_x.tiny_peer(), wall_x_words.known_tokenizer():
        return WallXPolicy.from_pretrained(folder)


def read_by_kata(folder: Path) -> Any:
    """Return kata's policy of a checkpoint."""
    from kata.config import decode
    from kata.policies import build_policy
    from kata.policies.config import PolicyConfig
    from kata.policies.load import load_weights
    from kata.run import read_policy_config

    config = decode(PolicyConfig, read_policy_config(folder, []))
    with policy_wall_x.tiny_own():
        policy = build_policy(config.without_downloads())
    load_weights(policy, folder / "model.safetensors")
    return policy.eval()


def checkpoints(asked: policy_wall_x.Case, theirs: Any, before: Any) -> bool:
    """Return True if each side writes the same words from the other's checkpoint."""
    from kata.policies.load import save_weights

    ours, seen = policy_wall_x.build_own(asked).eval(), policy_wall_x.observation(asked, 0)
    given = plain_pipeline(ours, asked.inputs[policy_wall_x.STATE][0])(seen)
    wanted = wall_x_words.own_words(ours, given)
    with tempfile.TemporaryDirectory() as place:
        made, written = Path(place) / "lerobot", Path(place) / "kata"
        theirs.save_pretrained(made)
        written.mkdir()
        ours.config.save(written)
        save_weights(ours, written / "model.safetensors")
        most = policy_wall_x.MOST_WORDS
        told = wall_x_words.peer_words(read_by_lerobot(written).eval(), before(seen), most)
        again = wall_x_words.own_words(read_by_kata(made), given)[:, :most]
    return bool(torch.equal(told, wanted) and torch.equal(again, wanted))


def main() -> int:
    torch.set_num_threads(1)
    from lerobot.policies.wall_x.processor_wall_x import make_wall_x_pre_post_processors

    asked = policy_wall_x.Case(words=True, top=policy_wall_x.APART)
    policy = policy_wall_x.build_peer(asked)
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
        found = "none: LeRobot acts, so that both sides can be compared in acting as they are"
    print(
        f"{'PASS' if found == EXPECTED else 'FAIL'} wall_x fast: LeRobot's error in acting: {found}"
    )
    alike = checkpoints(asked, policy.eval(), before)
    print(f"{'PASS' if alike else 'FAIL'} wall_x fast: the same words from each other's checkpoint")
    return int(not learns or found != EXPECTED or not alike)


if __name__ == "__main__":
    sys.exit(main())
