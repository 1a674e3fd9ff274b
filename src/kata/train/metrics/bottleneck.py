"""Diagnosis: which stage a run was bound by, and what it would gain from a faster one. Pure
arithmetic, no torch.

    store:  fetch                       many requests at a time, ahead of the reader
    reader: read -> decode -> convert   in threads, ahead of the loop
    loop:   wait for a batch -> copy -> update                          on the host
    device:                            compute                          beside the host where it is
    not the host

Reader, host and device work at the same time, so a run is as slow as the slowest of them, and only
work on that one makes it faster. Rules, in this order:

1. A device beside the host, as CUDA, that is more than BACKLOG_STEPS steps behind when the host
stops to log: compute.
2. The host waits for batches for WAIT_SHARE of the time: the reader; of its stages the one with
most thread time. While a task waits for bytes of a store, that is the time of all threads.
3. Such a device that is at least BEHIND_SHARE of a step behind: compute. Otherwise the host is:
copy or launch,
   whichever takes more of it.
4. Without one the host computes itself: copy or compute, whichever takes more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from kata.units import bytes_text, count_text

WAIT_SHARE = 0.1
"""Shorter waits come from uneven steps, and a faster reader would not shorten a run that
computes meanwhile.
"""
BACKLOG_STEPS = 1.0
"""The last step alone may lie this far behind; more than that means that the device never
catches up.
"""
BEHIND_SHARE = 0.2
"""Of a step: a device that waits for each launch ends within a few launches of the host."""
LARGE_GAIN = 10.0
"""Beyond this factor a stage is nearly all of the time, and the text gives no factor."""


class Stage(StrEnum):
    """A stage of a batch on its way to an update."""

    FETCH = "fetch"
    READ = "read"
    DECODE = "decode"
    CONVERT = "convert"
    COPY = "copy"
    COMPUTE = "compute"
    LAUNCH = "launch"


_READER = (Stage.READ, Stage.FETCH, Stage.DECODE, Stage.CONVERT)

_WORDS = {
    Stage.FETCH: (
        "the store that the dataset is read from",
        "--dataset.cache_dir keeps what was fetched on a disk of this machine, a larger "
        "--dataset.buffer_gb fetches further ahead, and a store nearer to this machine answers "
        "sooner",
    ),
    Stage.READ: (
        "reading bytes",
        "keep the dataset on a faster or local disk, or --dataset.cache=disk on one",
    ),
    Stage.DECODE: (
        "decoding frames",
        "--dataset.cache=frames (or disk) decodes each frame once, --dataset.shuffle=clips decodes "
        "it once an epoch, "
        "and --num_workers can be raised up to the number of free cores",
    ),
    Stage.CONVERT: (
        "converting colours and copying frames into the batch",
        "--dataset.cache=frames keeps frames converted, and --num_workers can be raised up to the "
        "number of free cores",
    ),
    Stage.COPY: (
        "copying batches to the device and preparing them there",
        "fewer or lighter --dataset.image_transforms, and fewer or smaller cameras",
    ),
    Stage.COMPUTE: (
        "computing the update",
        "--accelerator.mixed_precision=bf16, a faster device or a lighter model",
    ),
    Stage.LAUNCH: (
        "launching work on the device, which waits for it",
        "a larger --batch_size gives more work per launch",
    ),
}


@dataclass(frozen=True)
class Spent:
    """The times of `steps` steps.

    Host seconds are total_s and its parts: wait_s for batches, copy_s for copying and preparing,
    update_s, and drain_s for waiting on the device in `flushes` stops. pause_s are host seconds
    between steps, which total_s leaves out. read_s, decode_s and convert_s are thread seconds of
    the reader on `threads` threads. store_wait_s are seconds during which some task of the reader
    waited for bytes of a store; requests, request_s and bytes_fetched are those of the store.
    beside: the device computes beside the host, as CUDA does.
    """

    steps: int = 0
    total_s: float = 0.0
    wait_s: float = 0.0
    copy_s: float = 0.0
    update_s: float = 0.0
    drain_s: float = 0.0
    flushes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    convert_s: float = 0.0
    pause_s: float = 0.0
    store_wait_s: float = 0.0
    requests: int = 0
    request_s: float = 0.0
    bytes_fetched: int = 0
    threads: int = 1
    beside: bool = False

    def __add__(self, later: Spent) -> Spent:
        """Both together; threads and device are those of the later part."""
        first, second = asdict(self), asdict(later)
        both = Spent(**{name: first[name] + second[name] for name in first})
        return replace(both, threads=later.threads, beside=later.beside)

    @property
    def reader_s(self) -> float:
        """Thread seconds of the reader, with those in which it waits for a store."""
        return self.read_s + self.decode_s + self.convert_s + self.fetch_s

    @property
    def fetch_s(self) -> float:
        """Thread seconds in which the reader may have waited for a store."""
        return self.threads * self.store_wait_s


@dataclass(frozen=True)
class Diagnosis:
    """The verdict. share: of the run's time that the stage took, or kept the host waiting.

    halved, removed: how many times as fast the run would be with a stage twice as fast, and without
        it; at most, since work that no stage counts (Python between them) stays as it is.
    """

    stage: Stage
    share: float
    halved: float
    removed: float
    text: str


def diagnose(spent: Spent) -> Diagnosis | None:
    """The stage that binds, with what would help; None when nothing was measured."""
    if spent.steps == 0 or spent.total_s <= 0:
        return None
    stage = _binding(spent)
    what, remedy = _WORDS[stage]
    halved, removed = (_gain(spent, stage, left) for left in (0.5, 0.0))
    if stage in _READER:
        share = spent.wait_s / spent.total_s
        decoding_s = spent.reader_s - spent.fetch_s
        busy = min(1.0, decoding_s / (spent.threads * spent.total_s))
        said = (
            f"bound by {what}: the loop waited {share:.0%} of the time for data, while "
            f"{spent.threads} reading "
            f"{'thread was' if spent.threads == 1 else 'threads were'} busy {busy:.0%} of it"
        )
        if stage is Stage.FETCH:
            said += _of_the_store(spent)
    else:
        share = _host_s(spent, stage) / spent.total_s
        said = (
            f"bound by {what}: {share:.0%} of the time; data kept up (waiting: "
            f"{spent.wait_s / spent.total_s:.0%})"
        )
    gains = f"half of it would make the run {halved:.2f} times as fast, {_without(removed)}"
    return Diagnosis(stage, share, halved, removed, f"{said}; {gains}. What helps: {remedy}.")


def _of_the_store(spent: Spent) -> str:
    """Say what the store's requests took and brought."""
    latency_ms = 1000 * spent.request_s / max(spent.requests, 1)
    per_s = bytes_text(spent.bytes_fetched / spent.total_s)
    size = bytes_text(spent.bytes_fetched / max(spent.requests, 1))
    return (
        f"; {count_text(spent.requests)} requests took {latency_ms:.0f} ms each and brought {size} "
        f"each, {per_s} per second"
    )


def _without(removed: float) -> str:
    """Say what a run without the stage gains; a large factor would only measure the noise."""
    if removed > LARGE_GAIN:
        return f"and everything else takes less than {1 / LARGE_GAIN:.0%} of the time"
    return f"none of it {removed:.2f} times at most"


def _binding(spent: Spent) -> Stage:
    step_s = spent.total_s / spent.steps
    behind_s = spent.drain_s / max(1, spent.flushes)
    if spent.beside and behind_s > BACKLOG_STEPS * step_s:
        return Stage.COMPUTE
    if spent.wait_s >= WAIT_SHARE * spent.total_s:
        return max(_READER, key=lambda stage: _reader_s(spent, stage))
    if spent.beside and behind_s >= BEHIND_SHARE * step_s:
        return Stage.COMPUTE
    if spent.copy_s > spent.update_s:
        return Stage.COPY
    return Stage.LAUNCH if spent.beside else Stage.COMPUTE


def _gain(spent: Spent, stage: Stage, left: float) -> float:
    """Amdahl's law between two that work at the same time: the run's time by the slower one's,
    `left` of the stage.
    """
    if stage in _READER:
        share = _reader_s(spent, stage) / spent.reader_s if spent.reader_s > 0 else 1.0
        reader_s, rest_s = spent.total_s * (1 - share * (1 - left)), spent.total_s - spent.wait_s
    else:
        reader_s, rest_s = (
            spent.reader_s / spent.threads,
            spent.total_s - _host_s(spent, stage) * (1 - left),
        )
    # A hundredth stays: nothing makes a run infinitely fast.
    return spent.total_s / max(reader_s, rest_s, 0.01 * spent.total_s)


def _reader_s(spent: Spent, stage: Stage) -> float:
    return {
        Stage.FETCH: spent.fetch_s,
        Stage.READ: spent.read_s,
        Stage.DECODE: spent.decode_s,
        Stage.CONVERT: spent.convert_s,
    }[stage]


def _host_s(spent: Spent, stage: Stage) -> float:
    """Host seconds of a stage of the loop; what the device still does when the host stops is
    computing.
    """
    if stage is Stage.COPY:
        return spent.copy_s
    return spent.update_s + (spent.drain_s if stage is Stage.COMPUTE else 0.0)


def spent_of(lines: Sequence[Mapping[str, Any]]) -> Spent:
    """The sum over lines of metrics.jsonl; lines without these figures count nothing."""
    names = {field.name for field in fields(Spent)}
    total = Spent()
    for line in lines:
        if "spent" in line:
            total += Spent(
                **{name: value for name, value in line["spent"].items() if name in names}
            )
    return total
