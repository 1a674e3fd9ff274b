"""CPU seconds of SmolVLA, π0, π0.5 and π0-FAST beside LeRobot's, in one process and in turns.

    PYTHONPATH=src:.:tools/peer .peer/bin/python benchmarks/vla_beside_lerobot.py [--only CASE] \
        [--rounds=9] [--apart] [--out=FILE]
    PYTHONPATH=src:.:tools/peer .peer/bin/python benchmarks/vla_beside_lerobot.py --only CASE \
        --side=SIDE --profile

Runs in the environment of `make peer`. Sizes are fractions of the published ones, which keep their
proportions: widths an eighth (SmolVLA: a quarter), layers a third (a half), and tokens of images,
sentences and actions a quarter. A tiny SmolVLA has an eighth of the widths, a quarter of the layers
and a sixteenth of the tokens of images. Cases that say so have the published sizes; they are
measured where --only asks for them, and take 20 GB of memory.

An update is what a trainer does with a batch on the device: the loss, its gradients, their
clipping, and AdamW with the policy's preset. Both sides have the same weights, batches and draws.
The script ends with an error where a loss, a gradient or a chunk differs.

With --apart each side has processes of its own, in turns, in which kata keeps freed memory as its
trainer does, and, in others, does not; in one process both sides would have it.

With --profile, the time that each of torch's operations takes itself in an update of one side,
lerobot or kata, is printed, the longest first.

With cached prefixes, kata's update reads the keys and values of each sample from the files of the
feature cache. LeRobot computes them, and its frames are decoded already, which is not counted.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import pi_cases
import policy_pi0_fast
import policy_smolvla
import tiny_smolvlm
import torch
from numbers_of import difference
from sides import own_gradients, peer_gradients
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.turns import compared, seconds_in_turns
from benchmarks.vla_sizes import MIDDLE, PI, PI_SIZES, PUBLISHED, TINY, SmolvlaSizes
from kata.data.storage.row_cache import RowBudget, RowCache, RowFiles
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.optim.build import build_optimizer
from kata.spec import frozen_key
from kata.train.input.frozen_features import RecordLayout, frozen_part
from kata.train.model.freed_memory import freed_memory_kept

RESULT = Path(__file__).parent / "results/vla_beside_lerobot_20261123.json"
BATCH, STATE_DIM, ACTION_DIM = 8, 14, 14
STATE, TOKENS, MASK = pi_cases.STATE, pi_cases.TOKENS, pi_cases.MASK
CAMERAS = tuple(f"observation.images.{name}" for name in ("top", "left", "right"))
LOSS, GRADIENT, CHUNK = 1e-5, 1e-4, 1e-4
"""Most that both sides may differ by, of the largest number."""
AFTER = 1e-3
"""The same for losses after the updates that are timed."""
GIVEN_BACK = "kata, freed memory given back"
UPDATES = 6
"""Updates that are timed in a process of one side."""
PROFILED = 3


@dataclass(frozen=True)
class Compared:
    """A case: its policy, options, the tokens of a sentence, samples of a batch, and sizes (the
    policy's own for SmolVLA alone).
    """

    policy: str
    options: dict[str, Any] = field(default_factory=dict)
    words: int = 12
    is_cached: bool = False
    batch: int = BATCH
    sizes: SmolvlaSizes = MIDDLE

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        return {STATE: (STATE_DIM,), **self.cameras}

    @property
    def cameras(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(CAMERAS, self.sizes.frame)


EXPERT = {"train_expert_only": True}
CASES = {
    "smolvla": Compared("smolvla"),
    "smolvla, all trained": Compared("smolvla", policy_smolvla.ALL_TRAINED),
    "pi0, expert alone": Compared("pi0", EXPERT, is_cached=True),
    "pi0, all trained": Compared("pi0"),
    "pi05, expert alone": Compared("pi05", EXPERT, words=50, is_cached=True),
    "pi05, all trained": Compared("pi05", words=50),
    "pi0_fast": Compared("pi0_fast", words=50),
    "smolvla, all trained, tiny": Compared("smolvla", policy_smolvla.ALL_TRAINED, sizes=TINY),
    "smolvla, all trained, full size": Compared(
        "smolvla", policy_smolvla.ALL_TRAINED, words=48, batch=1, sizes=PUBLISHED
    ),
}


def drawn(seed: int, *shape: int) -> Tensor:
    """Return normal numbers that follow from the seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Inputs:
    """A batch of a case and what both sides draw, with LeRobot's keys."""

    def __init__(self, case: Compared, size: int, chunk: int, width: int) -> None:
        self.seen: dict[str, Any] = {STATE: drawn(0, size, STATE_DIM)}
        for number, (key, shape) in enumerate(case.cameras.items()):
            self.seen[key] = drawn(1 + number, size, *shape).sigmoid()
        steps = torch.arange(case.words)[None].expand(size, -1)
        lengths = case.words - torch.arange(size)[:, None] % 4
        self.seen[TOKENS] = torch.where(steps < lengths, 7 + (11 * steps) % 250, 0)
        self.seen[MASK] = steps < lengths
        self.batch = {
            **self.seen,
            "action": torch.sin(steps_of(chunk) + drawn(5, size, 1, ACTION_DIM)),
            "action_is_pad": torch.zeros(size, chunk, dtype=torch.bool),
        }
        self.noise = drawn(6, size, chunk, width)
        self.share = (torch.arange(size) + 0.5) / size

    @property
    def time(self) -> Tensor:
        return 0.999 * self.share ** (1 / 1.5) + 0.001


def steps_of(chunk: int) -> Tensor:
    """Return places in a chunk (1, T, 1), a motion of a quarter of a turn."""
    return torch.linspace(0, 1.5, chunk)[None, :, None]


@dataclass
class Pair:
    """Both sides of a case: losses of a batch, and chunks of one observation.

    Attributes:
        loss_of: kata's loss of a policy for a batch.
    """

    peer: Any
    own: Any
    peer_loss: Callable[[], Tensor]
    loss_of: Callable[[Any, dict[str, Any]], Tensor]
    peer_chunk: Callable[[], Tensor]
    own_chunk: Callable[[], Tensor]
    batch: dict[str, Any]

    def own_loss(self, batch: dict[str, Any]) -> Tensor:
        """Return the loss of kata's policy."""
        return self.loss_of(self.own, batch)


def smolvla(case: Compared) -> Pair:
    made = policy_smolvla.Case(case.inputs, ACTION_DIM, {**case.sizes.smolvla, **case.options})
    peer, own = policy_smolvla.build_peer(made), policy_smolvla.build_own(made)
    chunk = case.sizes.smolvla["chunk_size"]
    given, one = (Inputs(case, size, chunk, 32) for size in (case.batch, 1))
    return Pair(
        peer,
        own,
        lambda: peer.forward(given.batch, noise=given.noise, time=given.time)[0],
        lambda policy, batch: loss_of(policy, batch, given),
        lambda: peer.predict_action_chunk(dict(one.seen), noise=one.noise),
        lambda: own.predict_chunk(one.seen, noise=one.noise),
        given.batch,
    )


def flow_pi(case: Compared) -> Pair:
    sides = {"pi0": pi_cases.Sides("pi0", "PI0"), "pi05": pi_cases.Sides("pi05", "PI05")}
    options = {**PI, "num_inference_steps": 10, **case.options}
    made = pi_cases.Case(case.inputs, ACTION_DIM, options, max_length=case.words)
    peer, own = sides[case.policy].build_peer(made), sides[case.policy].build_own(made)
    given, one = (Inputs(case, size, 12, 32) for size in (BATCH, 1))
    peer.model.sample_noise = lambda *_: given.noise
    peer.model.sample_time = lambda *_: given.time
    return Pair(
        peer,
        own,
        lambda: peer.forward(given.batch)[0],
        lambda policy, batch: loss_of(policy, batch, given),
        lambda: peer.predict_action_chunk(one.seen, noise=one.noise),
        lambda: own.predict_chunk(one.seen, noise=one.noise),
        given.batch,
    )


def pi_fast(case: Compared) -> Pair:
    from lerobot.lerobot_types import TransitionKey
    from lerobot.processor import ActionTokenizerProcessorStep

    from kata.processors import ActionTokens

    options = {
        **PI, "max_action_tokens": 64, "max_decoding_steps": 24, "fast_skip_tokens": 8,
        "validate_action_token_prefix": False, "chunk_size": 4, "n_action_steps": 4,
    }  # fmt: skip
    made = policy_pi0_fast.FastCase(case.inputs, 6, options, max_length=case.words)
    peer, own = policy_pi0_fast.build_peer(made), policy_pi0_fast.build_own(made)
    given, one = (Inputs(case, size, 4, 32) for size in (BATCH, 1))
    chunks = given.batch.pop("action")[..., :6]
    with pi_cases.tiny_peer("pi0_fast"):
        step = ActionTokenizerProcessorStep(**policy_pi0_fast.step_options(made))
    told = step({TransitionKey.ACTION: chunks, TransitionKey.COMPLEMENTARY_DATA: {}})
    peer_batch = {**given.batch, "action": chunks, **told[TransitionKey.COMPLEMENTARY_DATA]}
    written = ActionTokens(**policy_pi0_fast.step_options(made))({"action": chunks})
    own_batch = {**given.batch, **written}

    def own_mean(policy: Any, batch: dict[str, Any]) -> Tensor:
        ((name, term),) = policy(batch).terms.items()
        return term.total / policy.config.loss_counts(batch)[name].sum()

    return Pair(
        peer,
        own,
        lambda: peer.forward(peer_batch)[0],
        own_mean,
        lambda: peer.predict_action_chunk(one.seen),
        lambda: own.predict_chunk(one.seen),
        own_batch,
    )


def loss_of(policy: Any, batch: dict[str, Any], given: Inputs) -> Tensor:
    """Return the mean of kata's loss."""
    pads = given.batch["action_is_pad"]
    draws = {"noise": given.noise, "time": given.share[:, None]}
    values = {"action_is_pad": pads.numpy()}
    ((name, count),) = policy.config.loss_weights(len(pads), values).items()
    return policy(batch, **draws).terms[name].total / count


BUILD = {"smolvla": smolvla, "pi0": flow_pi, "pi05": flow_pi, "pi0_fast": pi_fast}


@contextmanager
def sizes_of(case: Compared) -> Iterator[None]:
    """Build policies of the sizes above inside."""
    whole, sizes = tiny_smolvlm.config(), case.sizes.smolvlm
    for name, value in sizes.items():
        whole[name] = {**whole[name], **value} if isinstance(value, dict) else value
    fast = {"VOCABULARIES": PI_SIZES["VOCABULARIES"]}
    with (
        mock.patch.multiple(pi_cases, **PI_SIZES),
        mock.patch.multiple(policy_pi0_fast, **fast),
        mock.patch.object(tiny_smolvlm, "config", return_value=whole),
        mock.patch.object(tiny_smolvlm, "SIDE", sizes["vision_config"]["image_size"]),
    ):
        yield


def updates(
    policy: nn.Module, loss_of: Callable[[], Tensor], step: Callable[[Tensor], None]
) -> Callable[[], float]:
    """Return a function that updates a policy once and returns the loss.

    Args:
        policy: whose weights change.
        loss_of: returns the loss.
        step: clips gradients, changes the weights and drops the gradients.
    """

    def update() -> float:
        policy.train()
        loss = loss_of()
        loss.backward()
        step(loss.detach())
        return loss.item()

    return update


def peer_step(peer: nn.Module, preset: Any, most: float) -> Callable[[Tensor], None]:
    """Return the step of LeRobot's trainer, with the optimizer that LeRobot builds."""
    trained = [p for p in peer.parameters() if p.requires_grad]
    optimizer = preset.build(trained)

    def step(loss: Tensor) -> None:
        del loss
        nn.utils.clip_grad_norm_(trained, most)
        optimizer.step()
        optimizer.zero_grad()

    return step


def own_step(policy: Any, preset: Any) -> Callable[[Tensor], None]:
    """Return the step of kata's trainer on one rank."""
    optimizer = build_optimizer(policy.param_groups(), preset)
    engine = Engine(ProcessGroup(), torch.device("cpu"))

    def step(loss: Tensor) -> None:
        engine.step(optimizer, loss, preset.grad_clip_norm)

    return step


def cached_copy(pair: Pair) -> Any:
    """Return kata's policy once more, whose trained weights are apart from those of the first."""
    frozen = {id(p): p for p in pair.own.parameters() if not p.requires_grad}
    return copy.deepcopy(pair.own, frozen)


def kept(pair: Pair, folder: Path) -> Callable[[], dict[str, Any]]:
    """Keep the prefixes of a batch in a cache, and return a function that reads them there."""
    features = frozen_part(pair.own, "prefix", pair.batch, "no")
    layout = RecordLayout(features)
    files = RowFiles({"prefix": ("prefix", (layout.row_bytes,))}, BATCH, "samples' features")
    cache = RowCache(folder, files, RowBudget(2**33))
    rows = np.arange(BATCH)
    for row, record in enumerate(layout.packed(features).numpy()):
        cache.store("prefix", row, record)
    replaced = pair.own.config.frozen_features()["prefix"]
    rest = {key: value for key, value in pair.batch.items() if key not in replaced}

    def read() -> dict[str, Any]:
        record = np.empty((BATCH, layout.row_bytes), np.uint8)
        assert not cache.fetch("prefix", rows, record, rows).any()
        found = layout.unpacked(torch.from_numpy(record))
        return rest | {frozen_key(name): value for name, value in found.items()}

    return read


def checked(pair: Pair, cached: Callable[[], dict[str, Any]] | None) -> dict[str, float]:
    """Return the differences of losses, gradients and chunks; an error where they are too large."""
    found: dict[str, float] = {}
    pair.peer.train()
    pair.own.train()
    wanted = pair.peer_loss()
    wanted.backward()
    theirs = peer_gradients(pair.peer)
    for name, read in {"": lambda: pair.batch, "cached ": cached}.items():
        if read is None:
            continue
        loss = pair.own_loss(read())
        loss.backward()
        found[f"{name}loss"] = difference(loss.detach(), wanted.detach())
        mine = own_gradients(pair.own)
        found[f"{name}gradient"] = max(difference(mine[key], theirs[key]) for key in mine)
        # LeRobot gives gradients to what nothing reads.
        assert not any(theirs[key].any() for key in theirs.keys() - mine), name
        pair.own.zero_grad()
    pair.peer.zero_grad()
    pair.peer.eval()
    pair.own.eval()
    found["chunk"] = difference(pair.own_chunk(), pair.peer_chunk())
    for name, value in found.items():
        most = {"loss": LOSS, "gradient": GRADIENT, "chunk": CHUNK}[name.split()[-1]]
        assert value <= most, f"{name}: {value} > {most}"
    return found


def ways(pair: Pair, cached: Callable[[], dict[str, Any]] | None) -> dict[str, Callable[[], float]]:
    """Return the updates that are timed, by name; each way's weights go on from its last update."""
    preset = pair.own.config.optimizer_preset()
    # LeRobot's preset has the same numbers.
    theirs = pair.peer.config.get_optimizer_preset()
    found = {
        "lerobot": updates(
            pair.peer, pair.peer_loss, peer_step(pair.peer, theirs, preset.grad_clip_norm)
        ),
        "kata": updates(pair.own, lambda: pair.own_loss(pair.batch), own_step(pair.own, preset)),
    }
    if cached is not None:
        other = cached_copy(pair)
        found["kata, cached prefixes"] = updates(
            other, lambda: pair.loss_of(other, cached()), own_step(other, preset)
        )
    return found


def measured(case: Compared, rounds: int) -> dict[str, Any]:
    """Compare both sides of a case, then time them."""
    with sizes_of(case), tempfile.TemporaryDirectory() as folder:
        pair = BUILD[case.policy](case)
        cached = kept(pair, Path(folder)) if case.is_cached else None
        differences = checked(pair, cached)
        chunk = compared({"lerobot": pair.peer_chunk, "kata": pair.own_chunk}, rounds)
        timed = ways(pair, cached)
        update = compared(timed, rounds)
        # All have been updated equally often with the same batch.
        last = {name: update_once() for name, update_once in timed.items()}
    apart = max(abs(loss - last["lerobot"]) for loss in last.values()) / abs(last["lerobot"])
    assert apart <= AFTER, f"losses after the updates: {last}"
    return {"differences": differences, "last_losses": last, "update": update, "chunk": chunk}


def of_one_side(case: Compared, side: str) -> list[float]:
    """Return the CPU seconds of updates of one side as its own trainer runs them, without those of
    the first.
    """
    with sizes_of(case), ExitStack() as stack:
        update = ways(BUILD[case.policy](case), None)[side.partition(",")[0]]
        if side == "kata":
            stack.enter_context(freed_memory_kept(torch.device("cpu")))
        return seconds_in_turns({side: update}, UPDATES)[side]


def profiled(case: Compared, side: str) -> str:
    """Return a table of the time that torch's operations take themselves in PROFILED updates."""
    with sizes_of(case), freed_memory_kept(torch.device("cpu")):
        update = ways(BUILD[case.policy](case), None)[side]
        update()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(PROFILED):
                update()
    return seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=20)


def apart(name: str, rounds: int) -> dict[str, Any]:
    """Measure updates of both sides in processes of their own, in turns.

    Returns:
        The seconds of each process, their medians, and the median share of LeRobot's.
    """
    found: dict[str, list[list[float]]] = {"lerobot": [], "kata": [], GIVEN_BACK: []}
    for number in range(rounds):
        for side in [*found][:: -1 if number % 2 else 1]:
            line = [sys.executable, __file__, f"--only={name}", f"--side={side}"]
            said = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[side].append(json.loads(said.splitlines()[-1]))
            print(side, found[side][-1], flush=True)
    each = {side: [median(seconds) for seconds in runs] for side, runs in found.items()}
    medians = {side: median(values) for side, values in each.items()}
    peers = each.pop("lerobot")
    shares = {
        side: median(own / peer for own, peer in zip(values, peers, strict=True))
        for side, values in each.items()
    }
    return {"cpu_seconds": found, "medians": medians, "of_lerobot": shares}


def main() -> None:
    """Compare and measure all cases, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[*CASES], action="append")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--side", help="measure this side alone, and print its seconds")
    parser.add_argument("--profile", action="store_true", help="with --side")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.side is not None:
        (name,) = asked.only
        if asked.profile:
            print(profiled(CASES[name], asked.side))
            return
        print(json.dumps(of_one_side(CASES[name], asked.side)))
        return
    found: dict[str, Any] = {}
    for name in asked.only or [name for name, case in CASES.items() if case.sizes is not PUBLISHED]:
        if asked.apart:
            found[name] = {"update": apart(name, asked.rounds)}
            print(name, found[name]["update"]["medians"], found[name]["update"]["of_lerobot"])
            write(asked.out, asked.rounds, found, ("--apart",))
            continue
        found[name] = measured(CASES[name], asked.rounds)
        for kind in ("update", "chunk"):
            print(name, kind, found[name][kind]["medians"], found[name][kind]["of_lerobot"])
        print(name, found[name]["differences"], found[name]["last_losses"], flush=True)
        write(asked.out, asked.rounds, found)


def write(out: Path, rounds: int, found: dict[str, Any], more: Sequence[str] = ()) -> None:
    """Write what was found so far."""
    result = {
        "command": "PYTHONPATH=src:.:tools/peer OMP_NUM_THREADS=1 .peer/bin/python "
        f"benchmarks/vla_beside_lerobot.py --rounds={rounds} "
        + " ".join([*(f'--only "{name}"' for name in found), *more]),
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()},
        "versions": {name: version(name) for name in ("lerobot", "torch", "transformers")},
        "batches": {name: CASES[name].batch for name in found},
        "cameras": {name: CASES[name].cameras for name in found},
        "sizes": {
            "paligemma": PI_SIZES,
            "pi": PI,
            "smolvla": {name: asdict(CASES[name].sizes) for name in found if "smolvla" in name},
        },
        "cases": found,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
