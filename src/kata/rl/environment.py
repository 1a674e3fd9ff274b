"""The environment as an actor meets it: observations, rewards, ends, and who acted. Torch-free."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kata.errors import ConfigError, KataError
from kata.eval.env_check import Fit
from kata.eval.envs.registry import TERMINATED, EnvSpec, make
from kata.eval.vector_env import observed, told
from kata.rl.episodes.episode import SLACK
from kata.rl.options import CLASSIFIER, ENV

INTERVENTION, TELEOP_ACTION = "is_intervention", "teleop_action"
PENALTY = "discrete_penalty"
RERECORD, END = "rerecord_episode", "terminate_episode"
"""Keys of info by which LeRobot's environments, and gym-hil's wrappers, tell what a human did."""

_MEND = (
    "mend the environment, then start the same command again (`kata rl train` and `kata rl learn` "
    "with --resume=true): the episode under way is lost, and no other"
)

Arrays = dict[str, NDArray[Any]]

Judge = Callable[[Arrays], bool]
"""Returns True if an observation shows success."""


class Outcome(NamedTuple):
    """The outcome of a step.

    Attributes:
        observation: by policy key, cameras uint8 (H, W, C), the rest float32 (D,).
        action: (A,), float32, as it was executed.
        reward: as the run wants it.
        penalty: of the discrete action.
        intervention: True if a human acted.
        terminated: True if the task has ended.
        truncated: True if only the time is up.
        success: None if info does not tell.
        dropped: True if the human wants the episode again.
    """

    observation: Arrays
    action: NDArray[np.float32]
    reward: float
    penalty: float
    intervention: bool
    terminated: bool
    truncated: bool
    success: bool | None
    dropped: bool

    @property
    def ended(self) -> bool:
        """Return True if no step follows."""
        return self.terminated or self.truncated


@dataclass(frozen=True)
class EnvRules:
    """The reading of an environment: its spec, what the policy sees, the wanted reward."""

    spec: EnvSpec
    how: Fit
    reward: str
    choices: int | None = None  # of a discrete last action


class RlEnv:
    """One environment of a run, which an actor steps.

    Args:
        rules: how it is read.
        judge: tells success where the reward is a classifier's.
    """

    def __init__(self, rules: EnvRules, judge: Judge | None = None) -> None:
        self._rules = rules
        self._judge = judge
        self._seed = 0
        self.env = make(rules.spec)

    def reset(self, seed: int) -> Arrays:
        """Begin an episode and return its first observation.

        Raises:
            ConfigError: the environment fails, or what it shows is not what it declared.
        """
        self._seed = seed
        states = self._rules.spec.options
        start = states[seed % len(states)] if states else None
        with self._foreign("reset"):
            seen, _ = self.env.reset(seed=seed, options=start)
            return self._observed(seen)

    def step(self, action: NDArray[np.float32]) -> Outcome:
        """Take a step with an action (A,), which is limited to the environment's bounds.

        Raises:
            ConfigError: the action, the observation or the reward is not finite, the environment
                fails, or info tells what cannot be: a success that is neither true nor false, a
                penalty that is not finite, an executed action outside of the environment's bounds.
        """
        spec, how = self._rules.spec, self._rules.how
        if not np.isfinite(action).all():
            raise self._refused(
                f"the action is {action.tolist()}", "finite numbers", "a lower learning rate"
            )
        action = np.clip(action, how.low, how.high)
        given = action if spec.action_key is None else {spec.action_key: action}
        with self._foreign("step"):
            seen, reward, terminated, truncated, info = self.env.step(given)
            observation = self._observed(seen)
            terminated, truncated = bool(terminated), bool(truncated)
            human, is_over, is_dropped = (
                bool(self._told(info, key)) for key in (INTERVENTION, END, RERECORD)
            )
            if human and TELEOP_ACTION in info:
                action = self._executed(info[TELEOP_ACTION])
            penalty = self._finite(f"info['{PENALTY}']", info.get(PENALTY, 0.0))
            success = self._success(terminated, info)
        if self._rules.reward == CLASSIFIER:
            assert self._judge is not None
            success = self._judge(observation)
        wins = self._rules.reward != ENV and bool(success)
        return Outcome(
            observation=observation,
            action=action,
            reward=self._reward(reward, success, info),
            penalty=penalty,
            intervention=human,
            terminated=terminated or wins or is_over,
            truncated=truncated,
            success=success,
            dropped=is_dropped,
        )

    def close(self) -> None:
        """Let go of the environment."""
        self.env.close()

    def _success(self, terminated: bool, info: Mapping[str, Any]) -> bool | None:
        key = self._rules.spec.success_key
        if self._rules.reward == CLASSIFIER:
            return None
        return terminated if key == TERMINATED else self._told(info, key)

    def _told(self, info: Mapping[str, Any], key: str) -> bool | None:
        """Return a mark of info, None if it is absent."""
        try:
            return told(info, key)
        except ValueError as error:
            raise self._refused(str(error), "true or false, or 1 or 0", _MEND) from error

    def _reward(self, own: Any, success: bool | None, info: Mapping[str, Any]) -> float:
        spec = self._rules.spec
        if self._rules.reward == ENV:
            return self._finite("the reward", own)
        if success is None:
            raise ConfigError(
                f"rl.reward=success: info of {spec.id} has no '{spec.success_key}'",
                rule=f"info tells success; it has: {', '.join(map(str, info)) or 'nothing'}",
                remedy="name the key with --env.success_key, or learn from the environment's own "
                "reward: --rl.reward=env",
            )
        return float(success)

    def _finite(self, what: str, value: Any) -> float:
        """Return a number that stays finite in a buffer's float32."""
        found = _numbers(value)
        if found is None or found.size != 1 or not np.isfinite(found).all():
            raise self._refused(f"{what} is {value!r}", "a finite number", _MEND)
        return float(found.reshape(()))

    def _executed(self, value: Any) -> NDArray[np.float32]:
        """Return the action that a human executed, (A,), within the environment's bounds.

        A number outside by rounding is set to its bound, and a choice to its whole number.
        """
        how, choices = self._rules.how, self._rules.choices
        what = f"info['{TELEOP_ACTION}']"
        found = _numbers(value)
        if found is None or found.size != how.low.size or not np.isfinite(found).all():
            shown = value.tolist() if isinstance(value, np.ndarray) else value
            rule = f"{how.low.size} finite numbers: the action as it was executed"
            raise self._refused(f"{what} is {shown!r}", rule, _MEND)
        found = found.reshape(how.low.shape)
        low, high = how.low.copy(), how.high.copy()
        whole = found
        if choices is not None:
            low[-1], high[-1] = 0, choices - 1
            whole = np.append(found[:-1], found[-1].round())
        slack = SLACK * (high - low)
        wrong = (found < low - slack) | (found > high + slack) | (abs(found - whole) > slack)
        if wrong.any():
            which = int(np.flatnonzero(wrong)[0])
            kind = "whole numbers " if choices is not None and which == len(found) - 1 else ""
            raise self._refused(
                f"{what} has {found[which]:g} in dimension {which}",
                f"{kind}from {low[which]:g} to {high[which]:g}, the bounds of the action",
                _MEND,
            )
        return np.clip(whole, low, high).astype(np.float32)

    def _observed(self, seen: Any) -> Arrays:
        views = self._rules.how.views.items()
        return {key: observed(seen, key, view) for key, view in views}

    @contextmanager
    def _foreign(self, call: str) -> Generator[None]:
        """Tell in one message what goes wrong in the environment's own code, and where."""
        try:
            yield
        except KataError:
            raise
        except Exception as error:  # foreign code may raise anything, and the user needs to see it
            at = traceback.extract_tb(error.__traceback__)[-1]
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._refused(
                f"{call}: {said} ({Path(at.filename).name}, line {at.lineno})",
                "an environment shows what it declared, and does not fail within an episode",
                _MEND,
            ) from error

    def _refused(self, what: str, rule: str, remedy: str) -> ConfigError:
        return ConfigError(
            f"{self._rules.spec.id}, seed {self._seed}: {what}", rule=rule, remedy=remedy
        )


def _numbers(value: Any) -> NDArray[np.float64] | None:
    """Return numbers as float32 has them, or None for anything else."""
    try:
        found = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    if found.dtype.kind not in "biuf":
        return None
    with np.errstate(over="ignore"):
        return found.astype(np.float32).astype(np.float64)
