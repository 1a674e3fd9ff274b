"""Times EO-1 and Wall-X beside LeRobot in one process, in turns, in CPU seconds of one thread.

    PYTHONPATH=src:.:tools/peer <LeRobot's python> benchmarks/qwen_beside_lerobot.py eo1|wall_x OUT

Both sides have the weights of the comparison (tools/peer), at sizes between tiny and published, and
prepare prompts and frames in each round.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import policy_eo1
import policy_wall_x
import torch
from sides import plain_pipeline, plain_stats

ROUNDS = 7
TEXT = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [4, 6, 6],
    },
}  # fmt: skip
VISION = {
    "depth": 4, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4,
    "out_hidden_size": 256, "fullatt_block_indexes": [3], "window_size": 112,
}  # fmt: skip
FRAME = (3, 240, 320)


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def in_turns(peer: Callable[[], Any], own: Callable[[], Any]) -> dict[str, Any]:
    """Return the seconds of both, measured in turns after a round that does not count."""
    both = {"lerobot": peer, "kata": own}
    found: dict[str, list[float]] = {name: [] for name in both}
    for number in range(-1, ROUNDS):
        for name in sorted(both, reverse=number % 2 == 0):
            began = cpu_s()
            both[name]()
            if number >= 0:
                found[name].append(round(cpu_s() - began, 4))
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = round(medians["lerobot"] / medians["kata"], 2)
    return {"cpu_seconds": found, "medians": medians, "ratio": ratio}


def wall_x() -> dict[str, Any]:
    """Return the seconds of a chunk of 32 actions from one observation."""
    from lerobot.policies.wall_x.processor_wall_x import make_wall_x_pre_post_processors

    tools, inner = policy_wall_x, {"hidden_size": 256, "hidden_act": "silu"}
    experts = [{**inner, "intermediate_size": 768}, {**inner, "intermediate_size": 256}]
    case = tools.Case(
        {tools.STATE: (7,), tools.FACE: FRAME, tools.WRIST: FRAME},
        6,
        options={"chunk_size": 32, "n_action_steps": 32},
        text={**TEXT, "experts": experts, "dim_inputs": [256, 256]},
        vision=VISION,
    )
    peer, own = tools.build_peer(case).eval(), tools.build_own(case).eval()
    before = make_wall_x_pre_post_processors(peer.config, plain_stats(7, 6))[0]
    steps, noise = plain_pipeline(own, 7), tools.noise(case)[:1]

    def seen() -> dict[str, Any]:
        return {key: value[:1] for key, value in tools.observation(case, 0).items()}

    def chunk() -> torch.Tensor:
        with mock.patch("torch.randn", return_value=noise), tools.in_float32():
            return peer.predict_action_chunk(before(seen()))

    difference = (chunk() - own.predict_chunk(steps(seen()), noise=noise)).abs().max()
    timed = in_turns(chunk, lambda: own.predict_chunk(steps(seen()), noise=noise))
    return {"chunk": timed, "largest_difference_of_actions": float(difference)}


def eo1() -> dict[str, Any]:
    """Return the seconds of forward and backward passes of three samples, and of their chunks."""
    from lerobot.policies.eo1.processor_eo1 import make_eo1_pre_post_processors

    tools = policy_eo1
    case = tools.Case(
        {tools.STATE: (7,), tools.TOP: FRAME, tools.WRIST: FRAME},
        6,
        options={
            "chunk_size": 8, "n_action_steps": 8, "image_min_pixels": 50176,
            "image_max_pixels": 100352,
        },
        vlm={"text": TEXT, "vision": VISION},
    )  # fmt: skip
    peer, own = tools.build_peer(case).train(), tools.build_own(case).train()
    before = make_eo1_pre_post_processors(peer.config, plain_stats(7, 6))[0]
    steps = plain_pipeline(own, 7)

    def peer_update() -> None:
        peer.forward(before(tools.batch(case)))[0].backward()
        peer.zero_grad()

    def own_update() -> None:
        own(steps(tools.batch(case))).terms["flow_matching_loss"].total.backward()
        own.zero_grad()

    return {
        "forward_and_backward": in_turns(peer_update, own_update),
        "chunk": in_turns(
            lambda: peer.predict_action_chunk(before(tools.observation(case, 0))),
            lambda: own.predict_chunk(steps(tools.observation(case, 0))),
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    name, out = sys.argv[1], Path(sys.argv[2])
    measured = {"eo1": eo1, "wall_x": wall_x}[name]()
    about = {"torch": torch.__version__, "text": TEXT, "vision": VISION, "frames": FRAME}
    out.write_text(json.dumps({"policy": name, **about, **measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
