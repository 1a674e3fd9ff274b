"""Lines through the counts of recordings with different numbers of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kata.errors import PolicyError
from kata.plan.step_trace import Linear, TracedOperation, TracedStorage
from kata.plan.tracing.recorder import RecordedOperation, RecordedStorage, Recording


class _Sizes(NamedTuple):
    """The samples of three recordings; a line goes through two, and the third checks it."""

    first: int
    second: int
    third: int


def fit_lines(policy: str, sizes: Sequence[int], recordings: Sequence[Recording]) -> dict[str, Any]:
    """Return the fields of a StepTrace that recordings give.

    Args:
        policy: its type, for errors.
        sizes: samples of each of the three recordings.
        recordings: of one step each.

    Raises:
        PolicyError: they differ in operations, or a count is on no line.
    """
    at = _Sizes(*sizes)
    _require_alike(policy, recordings)
    first, second, third = recordings
    operations: list[TracedOperation] = []
    for group in zip(first.operations, second.operations, third.operations, strict=True):
        operations.append(_operation(policy, at, group))
    count = len(operations)
    storages: list[TracedStorage] = []
    for trio in zip(first.storages, second.storages, third.storages, strict=True):
        storages.append(_storage(policy, at, trio, count))
    return {
        "begins": dict(first.begins),
        "operations": _alike_together(operations),
        "storages": tuple(storages),
        "num_operations": count,
    }


def _require_alike(policy: str, recordings: Sequence[Recording]) -> None:
    """Refuse recordings that do not run the same operations in the same order."""
    first, *others = recordings
    for other in others:
        for one, two in zip(first.operations, other.operations, strict=False):
            if one.name != two.name:
                raise _not_linear(policy, f"{one.name} ({one.phase}) is {two.name} elsewhere")
        if len(first.operations) != len(other.operations):
            longer = max(first, other, key=lambda recording: len(recording.operations))
            extra = longer.operations[min(len(first.operations), len(other.operations))]
            raise _not_linear(policy, f"{extra.name} ({extra.phase}) does not run for each size")
    counts = {len(recording.storages) for recording in recordings}
    if len(counts) > 1:
        raise _not_linear(policy, f"{sorted(counts)} tensors are allocated")


def _operation(policy: str, at: _Sizes, group: tuple[RecordedOperation, ...]) -> TracedOperation:
    first = group[0]

    def line(field: str) -> Linear:
        values = [getattr(op, field) for op in group]
        return _line(at, values, policy, f"{field} of {first.name} ({first.phase})")

    return TracedOperation(
        name=first.name,
        kind=first.kind,
        phase=first.phase,
        dtype=first.dtype,
        launches=first.launches,
        runs=1,
        flops=line("flops"),
        read_bytes=line("read_bytes"),
        written_bytes=line("written_bytes"),
    )


def _storage(
    policy: str, at: _Sizes, trio: tuple[RecordedStorage, ...], count: int
) -> TracedStorage:
    first = trio[0]
    sizes = [storage.size_bytes for storage in trio]
    size = _line(at, sizes, policy, f"memory of the result of {first.source}")
    ends = {count if storage.end is None else storage.end for storage in trio}
    return TracedStorage(first.part or "temporaries", size, first.begin, max(ends))


def _line(at: _Sizes, values: Sequence[int], policy: str, what: str) -> Linear:
    slope = (values[1] - values[0]) / (at.second - at.first)
    line = Linear(values[0] - slope * at.first, slope)
    if line.at(at.third) != values[2]:
        raise _not_linear(
            policy, f"{what} is {values[0]}, {values[1]} and {values[2]} for {at} samples"
        )
    return line


def _alike_together(operations: Sequence[TracedOperation]) -> tuple[TracedOperation, ...]:
    """Return each operation once, with the number of its runs."""
    counts: dict[TracedOperation, int] = {}
    for operation in operations:
        counts[operation] = counts.get(operation, 0) + 1
    return tuple(operation._replace(runs=count) for operation, count in counts.items())


def _not_linear(policy: str, what: str) -> PolicyError:
    return PolicyError(
        f"policy.type={policy}: its training step does not grow linearly with the samples: {what}",
        rule="each count of a step is a constant plus a part per sample",
        remedy="plan for the exact batch with `kata plan --calibrate` on the GPU",
    )
