"""Environments as they run: observations under the policy's names, and crashes as values.
Torch-free.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from kata.eval.env_check import View
from kata.eval.envs.registry import TERMINATED, EnvSpec, make

Array = NDArray[Any]


class Start(NamedTuple):
    """The beginning of an episode. film: True if its frames are wanted."""

    seed: int
    options: dict[str, Any] | None
    film: bool


class Moment(NamedTuple):
    """The outcome of a reset or a step of one environment.

    observation: by policy key, cameras uint8 (H, W, C), the rest float32 (D,). success: None if
    `info` does not hold it; info_keys lists the keys that it holds.
    """

    observation: dict[str, Array]
    reward: float
    ended: bool
    success: bool | None
    info_keys: tuple[str, ...]
    picture: NDArray[np.uint8] | None


class Crash(NamedTuple):
    """Why an environment cannot go on."""

    error: str


Found = dict[int, Moment | Crash]


class Envs(Protocol):
    """Environments by slot number."""

    def reset(self, starts: Mapping[int, Start]) -> Found:
        """Begin an episode in each of these slots; a slot that crashed gets a new environment."""
        ...

    def step(self, actions: Mapping[int, Array]) -> Found:
        """One step in each of these slots; actions (A,)."""
        ...

    def close(self) -> None:
        """Let go of all environments."""
        ...


class Simulation:
    """One environment, made when it is first needed."""

    def __init__(self, spec: EnvSpec, views: Mapping[str, View]) -> None:
        self._spec, self._views = spec, views
        self._env: gymnasium.Env[Any, Any] | None = None
        self._film = False

    def reset(self, start: Start) -> Moment:
        """The first moment of an episode."""
        if self._env is None:
            self._env = make(self._spec)
        self._film = start.film
        seen, info = self._env.reset(seed=start.seed, options=start.options)
        return self._moment(seen, 0.0, info, terminated=False, truncated=False)

    def step(self, action: Array) -> Moment:
        """The moment after an action (A,)."""
        assert self._env is not None
        key = self._spec.action_key
        seen, reward, terminated, truncated, info = self._env.step(
            action if key is None else {key: action}
        )
        return self._moment(
            seen, float(reward), info, terminated=bool(terminated), truncated=bool(truncated)
        )

    def close(self) -> None:
        """Let go of the environment; the next reset makes a new one."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _moment(
        self,
        seen: Any,
        reward: float,
        info: Mapping[str, Any],
        *,
        terminated: bool,
        truncated: bool,
    ) -> Moment:
        if not math.isfinite(reward):
            raise ValueError(f"the reward is {reward}")
        observation = {key: observed(seen, key, view) for key, view in self._views.items()}
        success = (
            terminated
            if self._spec.success_key == TERMINATED
            else told(info, self._spec.success_key)
        )
        picture = self._picture(observation) if self._film else None
        return Moment(
            observation, reward, terminated or truncated, success, tuple(map(str, info)), picture
        )

    def _picture(self, observation: Mapping[str, Array]) -> NDArray[np.uint8] | None:
        """The environment's own picture, or the policy's cameras side by side; None where there
        is neither.
        """
        assert self._env is not None
        if self._env.render_mode == "rgb_array":
            return np.array(self._env.render(), dtype=np.uint8)[..., :3]
        frames = [observation[key] for key, view in self._views.items() if view.is_camera]
        if not frames:
            return None
        height = max(len(frame) for frame in frames)
        return np.concatenate(
            [np.pad(f, ((0, height - len(f)), (0, 0), (0, 0))) for f in frames], axis=1
        )


def observed(seen: Any, key: str, view: View) -> Array:
    """One input of the policy, copied: environments may write the next frame into the same
    memory.
    """
    value = seen
    for name in view.keys:
        value = value[name]
    found = np.array(value) if view.is_camera else np.array(value, dtype=np.float32, ndmin=1)
    if found.shape != view.shape:
        raise ValueError(f"{key} has the shape {found.shape} and was declared as {view.shape}")
    if view.is_camera and found.dtype != np.uint8:
        raise ValueError(f"{key} is {found.dtype} and was declared as uint8")
    if not view.is_camera and not np.isfinite(found).all():
        raise ValueError(f"{key} is not finite: {found.tolist()}")
    return found


def told(info: Mapping[str, Any], path: str) -> bool | None:
    """Return the bool in `info` under a name, or at a dotted path; None if it is absent.

    Raises:
        ValueError: the value there is neither a bool nor 0 or 1.
    """
    value: Any = info
    # gym-hil has the whole of "next.success" as a key, other environments nest.
    for name in (path,) if path in info else path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    found = np.asarray(value)
    if found.dtype.kind not in "biuf" or found.size != 1 or found.item() not in (0, 1):
        raise ValueError(f"info['{path}'] is {value!r}, neither true nor false")
    return bool(found.item())


Given = TypeVar("Given")


class LocalEnvs:
    """Environments in this process."""

    def __init__(self, spec: EnvSpec, views: Mapping[str, View]) -> None:
        self._spec, self._views = spec, views
        self._slots: dict[int, Simulation] = {}

    def reset(self, starts: Mapping[int, Start]) -> Found:
        """Begin episodes."""
        for slot in starts:
            self._slots.setdefault(slot, Simulation(self._spec, self._views))
        return {
            slot: self._tried(slot, self._slots[slot].reset, start)
            for slot, start in starts.items()
        }

    def step(self, actions: Mapping[int, Array]) -> Found:
        """Go on."""
        return {
            slot: self._tried(slot, self._slots[slot].step, action)
            for slot, action in actions.items()
        }

    def close(self) -> None:
        """Let go of all; an environment that fails in closing has done its work."""
        for slot in self._slots:
            self._let_go(slot)
        self._slots.clear()

    def _tried(self, slot: int, call: Callable[[Given], Moment], given: Given) -> Moment | Crash:
        try:
            return call(given)
        except Exception as error:  # noqa: BLE001 - foreign code: what it raises costs one episode, not all of them
            self._let_go(slot)
            return Crash(" ".join(f"{type(error).__name__}: {error}".split()))

    def _let_go(self, slot: int) -> None:
        with contextlib.suppress(Exception):  # foreign code, and a new environment takes its place
            self._slots[slot].close()


class RemoteEnvs:
    """Environments in separate processes; slot s is in process s modulo their number.

    A process that dies costs its episodes. It is started again at the next reset.
    """

    def __init__(self, spec: EnvSpec, views: Mapping[str, View], processes: int) -> None:
        self._spec = spec
        self._views = dict(views)
        self._count = processes
        self._spawn = multiprocessing.get_context(
            "spawn"
        )  # fork would copy the threads of torch in mid-work
        self._live: dict[int, tuple[Any, Any]] = {}

    def reset(self, starts: Mapping[int, Start]) -> Found:
        """Begin episodes, all processes at once."""
        for number in {slot % self._count for slot in starts} - set(self._live):
            here, there = self._spawn.Pipe()
            process = self._spawn.Process(
                target=_serve, args=(there, self._spec, self._views), daemon=True
            )
            process.start()
            there.close()
            self._live[number] = process, here
        return self._ask("reset", starts)

    def step(self, actions: Mapping[int, Array]) -> Found:
        """Go on, all processes at once."""
        return self._ask("step", actions)

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._live.values():
            pipe.close()
            process.join()
        self._live.clear()

    def _ask(self, what: str, given: Mapping[int, Any]) -> Found:
        shares: dict[int, dict[int, Any]] = {}
        for slot, value in given.items():
            shares.setdefault(slot % self._count, {})[slot] = value
        dead: dict[int, str] = {}
        for number, share in shares.items():
            try:
                self._live[number][1].send((what, share))
            except OSError:
                dead[number] = ""
        found: Found = {}
        for number, share in shares.items():
            try:
                found |= (
                    self._live[number][1].recv()
                    if number not in dead
                    else self._gone(number, share)
                )
            except (EOFError, OSError):
                found |= self._gone(number, share)
        return found

    def _gone(self, number: int, share: Mapping[int, Any]) -> Found:
        process, pipe = self._live.pop(number)
        pipe.close()
        process.join()
        return dict.fromkeys(share, Crash(f"its process ended with exit code {process.exitcode}"))


def _serve(pipe: Connection, spec: EnvSpec, views: Mapping[str, View]) -> None:
    """Run environments until the other side hangs up; interrupting is the other side's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    envs = LocalEnvs(spec, views)
    while True:
        try:
            what, given = pipe.recv()
        except EOFError:
            break
        pipe.send(envs.reset(given) if what == "reset" else envs.step(given))
    envs.close()
