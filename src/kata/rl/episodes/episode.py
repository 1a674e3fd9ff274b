"""The episode: the one unit that is recorded, stored, sent and learned from. NumPy only.

An episode of T steps has T + 1 observations: the last one is what its last action led to, whether
the task had ended or only the time was up.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.errors import DataError

_DTYPES = {"F32": np.dtype(np.float32), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_BYTES = 65_536
_FACTS = "kata"

SLACK = 1e-4
"""Share of its range by which an action may be outside of its bounds: floats are rounded."""


@dataclass(frozen=True)
class Schema:
    """The arrays of a run's episodes.

    Attributes:
        observations: shape of one observation by key; cameras (H, W, C), vectors (D,).
        cameras: keys that are uint8; the others are float32.
        action_size: numbers of an action.
        low: least value of each number of an action; empty where bounds are not known.
        high: largest values, as many.
        choices: of a discrete last number, which is whole and counts from 0; None without one.
    """

    observations: dict[str, tuple[int, ...]]
    cameras: tuple[str, ...]
    action_size: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    choices: int | None = None

    def dtype(self, key: str) -> np.dtype[Any]:
        """Return the type of an observation."""
        return np.dtype(np.uint8 if key in self.cameras else np.float32)

    @property
    def row_bytes(self) -> int:
        """Return the bytes that a step takes in a buffer."""
        found = sum(
            self.dtype(key).itemsize * math.prod(shape) for key, shape in self.observations.items()
        )
        # Action, reward and penalty are float32; end, takeover and success are marks of a byte.
        return found + 4 * self.action_size + 4 + 4 + 1 + 1 + 1

    def arrays(self, steps: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return type and shape of every array of an episode, by its name in files."""
        found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for key, shape in self.observations.items():
            found[key] = (self.dtype(key), (steps + 1, *shape))
        for key in ("reward", "penalty"):
            found[key] = (np.dtype(np.float32), (steps,))
        found["intervention"] = (np.dtype(np.bool_), (steps,))
        found["action"] = (np.dtype(np.float32), (steps, self.action_size))
        return found

    @property
    def digest(self) -> str:
        """Return 16 hex digits that are equal for equal schemas."""
        facts: list[Any] = [sorted(self.observations.items()), sorted(self.cameras)]
        facts += [
            self.action_size,
            rounded_bounds(self.low),
            rounded_bounds(self.high),
            self.choices,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def rounded_bounds(bounds: tuple[float, ...]) -> list[float]:
    """Return bounds with five digits: those that are computed may differ in their last bit between
    machines.
    """
    return [float(f"{value:.5g}") for value in bounds]


@dataclass(frozen=True, eq=False)
class PlayedEpisode:
    """One episode of T steps.

    Attributes:
        observations: (T + 1, ...) by key.
        action: (T, A), float32, as it was executed, in the environment's units.
        reward: (T,), float32.
        penalty: (T,), float32, added to the reward of the discrete action.
        intervention: (T,), bool, True where a human or an expert acted.
        terminated: True if the task ended with the last step, so that nothing follows.
        success: True if the task was done; None if nobody said.
        seed: of its start state.
    """

    observations: Mapping[str, NDArray[Any]]
    action: NDArray[np.float32]
    reward: NDArray[np.float32]
    penalty: NDArray[np.float32]
    intervention: NDArray[np.bool_]
    terminated: bool
    success: bool | None = None
    seed: int = 0

    @property
    def steps(self) -> int:
        """Return T."""
        return len(self.reward)

    @property
    def human_steps(self) -> int:
        """Return the steps that a human or an expert took."""
        return int(self.intervention.sum())

    def segments(self) -> list[PlayedEpisode]:
        """Return each run of steps in a row that a human took, as a separate episode."""
        edges = np.flatnonzero(np.diff(self.intervention.astype(np.int8), prepend=0, append=0))
        return [self._part(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    def _part(self, first: int, end: int) -> PlayedEpisode:
        steps = slice(first, end)
        return PlayedEpisode(
            {key: values[first : end + 1] for key, values in self.observations.items()},
            self.action[steps],
            self.reward[steps],
            self.penalty[steps],
            self.intervention[steps],
            self.terminated and end == self.steps,
            self.success,
            self.seed,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return every array by its name in files."""
        return {
            **self.observations,
            "action": self.action,
            "reward": self.reward,
            "penalty": self.penalty,
            "intervention": self.intervention,
        }

    def to_bytes(self) -> bytes:
        """Return the episode as a safetensors file. Equal episodes give equal bytes."""
        arrays = dict(sorted(self.arrays().items()))
        facts = {"terminated": self.terminated, "success": self.success, "seed": self.seed}
        header: dict[str, Any] = {"__metadata__": {_FACTS: json.dumps(facts)}}
        end = 0
        for name, values in arrays.items():
            begin, end = end, end + values.nbytes
            header[name] = {
                "dtype": _NAMES[values.dtype],
                "shape": list(values.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        body = [np.ascontiguousarray(values).tobytes() for values in arrays.values()]
        return b"".join([len(text).to_bytes(8, "little"), text, *body])

    @staticmethod
    def from_bytes(raw: bytes, schema: Schema, source: str) -> PlayedEpisode:
        """Return the episode that `to_bytes` wrote. Names, types, shapes and sizes are checked
        before anything is kept, and all numbers must be finite.

        Args:
            raw: the file.
            schema: what the run's episodes are.
            source: where the bytes come from, for messages.

        Raises:
            DataError: the bytes are not such an episode.
        """
        found = _Parsed.of(raw, source)
        facts = found.facts
        wanted = schema.arrays(found.steps)
        if found.entries.keys() != wanted.keys():
            odd = sorted(found.entries.keys() ^ wanted.keys())
            raise _refused(source, f"arrays that differ: {', '.join(odd[:4])}")
        arrays = {name: found.array(name, *wanted[name]) for name in wanted}
        return PlayedEpisode(
            {key: arrays[key] for key in schema.observations},
            arrays["action"],
            arrays["reward"],
            arrays["penalty"],
            arrays["intervention"],
            facts["terminated"],
            facts["success"],
            facts["seed"],
        )

    @staticmethod
    def admitted(raw: bytes, schema: Schema, source: str) -> PlayedEpisode:
        """Return the episode of `from_bytes` if a run may take it: its actions are ones that the
        environment takes, too. Episodes that a run has taken before are read without that.

        Args:
            raw: see `from_bytes`.
            schema: see `from_bytes`.
            source: see `from_bytes`.

        Raises:
            DataError: it may not.
        """
        found = PlayedEpisode.from_bytes(raw, schema, source)
        if schema.low:
            _refuse_outside(found.action, schema, source)
        if schema.choices is not None:
            last = found.action[:, -1]
            wrong = (last != last.round()) | (last < 0) | (last >= schema.choices)
            if wrong.any():
                raise _impossible(
                    f"{source}: the discrete action {last[wrong][0]:g}",
                    f"whole numbers from 0 to {schema.choices - 1}",
                )
        return found


_KINDS: dict[str, tuple[type[Any], ...]] = {
    "terminated": (bool,),
    "success": (bool, type(None)),
    "seed": (int,),
}
"""Types of the facts in a header."""


@dataclass(frozen=True)
class _Parsed:
    """The header of a safetensors file, and the numbers behind it."""

    source: str
    entries: dict[str, dict[str, Any]]
    facts: dict[str, Any]
    body: memoryview = field(repr=False)

    @staticmethod
    def of(raw: bytes, source: str) -> _Parsed:
        length = int.from_bytes(raw[:8], "little")
        if len(raw) < 8 or length > min(len(raw) - 8, _HEADER_BYTES):
            raise _refused(source, f"a header of {length} bytes in {len(raw)}")
        try:
            entries = json.loads(raw[8 : 8 + length])
            facts = json.loads(entries.pop("__metadata__")[_FACTS])
            ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
            known = {name: facts[name] for name in _KINDS}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _refused(source, f"a header that cannot be read ({error})") from error
        odd = [name for name, kinds in _KINDS.items() if type(known[name]) not in kinds]
        if odd:
            raise _refused(source, f"{odd[0]} is {known[odd[0]]!r}")
        body = memoryview(raw)[8 + length :]
        if max(ends, default=0) != len(body):
            raise _refused(source, f"{len(body)} bytes of arrays, {max(ends, default=0)} declared")
        return _Parsed(source, entries, known, body)

    @property
    def steps(self) -> int:
        """Return the steps, of which there is at least one."""
        shape = self.entries.get("reward", {}).get("shape")
        if not isinstance(shape, list) or len(shape) != 1 or not int(shape[0]) > 0:
            raise _refused(self.source, f"reward of the shape {shape}")
        return int(shape[0])

    def array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return one array, which must be as declared."""
        entry = self.entries[name]
        if _DTYPES.get(str(entry.get("dtype"))) != dtype or entry.get("shape") != list(shape):
            raise _refused(
                self.source, f"{name} {entry.get('dtype')} {entry.get('shape')}, not {list(shape)}"
            )
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(self.body) or end - begin != dtype.itemsize * math.prod(
            shape
        ):
            raise _refused(self.source, f"{name} at {begin} to {end}")
        values = np.frombuffer(self.body[begin:end], dtype).reshape(shape)
        if dtype == np.float32 and not np.isfinite(values).all():
            raise _refused(self.source, f"{name} with numbers that are not finite")
        return values


def _refuse_outside(action: NDArray[np.float32], schema: Schema, source: str) -> None:
    """Refuse actions that the environment cannot have executed."""
    low, high = np.array(schema.low), np.array(schema.high)
    slack = SLACK * (high - low)
    outside = np.argwhere((action < low - slack) | (action > high + slack))
    if len(outside):
        step, which = outside[0].tolist()
        raise _impossible(
            f"{source}: the action {action[step, which]:g} at step {step} in dimension {which}",
            f"within the environment's bounds: from {low[which]:g} to {high[which]:g}",
        )


def _impossible(what: str, rule: str) -> DataError:
    remedy = "repair the environment, or what its info says that a human did"
    return DataError(what, rule=rule, remedy=remedy)


def _refused(source: str, what: str) -> DataError:
    return DataError(
        f"{source}: {what}",
        rule="an episode of this run: the arrays of its schema, finite, in one safetensors file",
        remedy="copy it again from where it is whole, or begin a new run in another folder",
    )
