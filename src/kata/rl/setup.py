"""The parts of a run: what the environment shows and takes, statistics, policy, buffers."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from kata.data.storage.buffers import free_memory
from kata.errors import ConfigError, PolicyError, did_you_mean
from kata.eval.env_check import WHOLE, fit
from kata.eval.envs.registry import EnvSpec, Facts, inspect
from kata.eval.rollout_policy import Acting, acting
from kata.policies import build_policy
from kata.policies.device import choose_device
from kata.policies.gaussian_actor.config import Config
from kata.policies.gaussian_actor.model import Policy
from kata.policies.pipelines import canonical_pipelines
from kata.rl.demos import Demos
from kata.rl.environment import EnvRules, RlEnv
from kata.rl.episodes.episode import Schema
from kata.rl.episodes.ring import Ring, buffer_text
from kata.rl.options import ENV, RlRun
from kata.rl.sac.config import SacConfig
from kata.spec import (
    ACTION,
    ENV_STATE,
    IMAGENET_MEAN,
    IMAGENET_STD,
    STATE,
    Feature,
    FeatureType,
    NormMode,
    Stats,
)
from kata.units import bytes_text

PLACEHOLDER = {
    "observation.image": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    STATE: {"min": [0.0, 0.0], "max": [1.0, 1.0]},
    ACTION: {"min": [0.0, 0.0, 0.0], "max": [1.0, 1.0, 1.0]},
}
"""LeRobot's default statistics, which fit no robot."""

ONLINE, OFFLINE = "policy.online_buffer_capacity", "policy.offline_buffer_capacity"

_log = logging.getLogger(__name__)


def policy_config(run: RlRun, spec: EnvSpec) -> tuple[Config, EnvRules, Facts]:
    """Return the policy's config with the environment's features, and how to read it.

    Raises:
        PolicyError: the environment has nothing that the policy can see or do.
        ConfigError: the environment cannot be made.
    """
    facts = inspect(spec)
    config = run.policy
    size = (facts.action.shape or (1,))[0]
    action = Feature(FeatureType.ACTION, (size - (config.num_discrete_actions is not None),))
    inputs = config.input_features or _inputs(spec, facts)
    outputs = config.output_features or {ACTION: action}
    config = dataclasses.replace(config, input_features=inputs, output_features=outputs)
    config.validate_features()
    how = fit(config, spec, facts, {})
    rules = EnvRules(spec, how, run.rl.reward, config.num_discrete_actions)
    _refuse_unbounded(spec, rules)
    _refuse_other_choices(spec, rules)
    return config, rules, facts


def _inputs(spec: EnvSpec, facts: Facts) -> dict[str, Feature]:
    """Return what an environment shows, under the names that LeRobot's environments have."""
    mapped = {path: key for key, path in spec.observation_map.items()}
    usual = {"agent_pos": STATE, "environment_state": ENV_STATE, WHOLE: STATE}
    found: dict[str, Feature] = {}
    for path, leaf in facts.leaves.items():
        key = mapped.get(path, usual.get(path))
        if leaf.is_picture:
            camera = path.removeprefix("pixels.")
            named = "observation.image" if path == "pixels" else f"observation.images.{camera}"
            height, width, channels = leaf.shape
            shape = (channels, height, width)
            found[key or named] = Feature(FeatureType.VISUAL, shape)
        elif key is not None and len(leaf.shape) == 1:
            kind = FeatureType.ENV if key == ENV_STATE else FeatureType.STATE
            found[key] = Feature(kind, leaf.shape)
        else:
            _log.info("%s: '%s' of the observation is not read", spec.id, path)
    return found


def _refuse_unbounded(spec: EnvSpec, rules: EnvRules) -> None:
    low, high = rules.how.low, rules.how.high
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise PolicyError(
            f"{spec.id}: actions from {low.tolist()} to {high.tolist()}",
            rule="bounds of actions are finite: the policy's (-1, 1) stands for them",
            remedy="wrap the environment, for example with gymnasium.wrappers.RescaleAction",
        )


def _refuse_other_choices(spec: EnvSpec, rules: EnvRules) -> None:
    """Refuse a discrete last action with choices that the environment does not take."""
    choices = rules.choices
    low, high = rules.how.low[-1], rules.how.high[-1]
    if choices is None or (low <= 0 and high >= choices - 1):
        return
    most = int(high) + 1
    fewer = f"--policy.num_discrete_actions={most}, or " if low <= 0 and most > 1 else ""
    raise PolicyError(
        f"policy.num_discrete_actions={choices}: the last action of {spec.id} goes from {low:g} to "
        f"{high:g}",
        rule=f"the environment takes each choice, 0 to {choices - 1}, as it is",
        remedy=f"{fewer}leave it out where the last action is no choice, or wrap the environment",
    )


def episode_schema(config: Config, rules: EnvRules) -> Schema:
    """Return what the run's episodes are."""
    views = rules.how.views
    return Schema(
        {key: view.shape for key, view in views.items()},
        tuple(key for key, view in views.items() if view.is_camera),
        config.action_size,
        tuple(rules.how.low.tolist()),
        tuple(rules.how.high.tolist()),
        config.num_discrete_actions,
    )


def run_stats(config: Config, rules: EnvRules, world: RlEnv, demos: Demos | None) -> Stats:
    """Return statistics of every feature: the given ones, else the environment's bounds, else those
    of demonstrations.

    Raises:
        PolicyError: a feature has none, or those given do not fit.
    """
    given = config.dataset_stats or {}
    if given == PLACEHOLDER:
        raise PolicyError(
            "policy.dataset_stats: LeRobot's placeholder",
            rule="statistics of this environment",
            remedy="leave it out: they come from the environment's bounds or the demonstrations",
        )
    found: Stats = {}
    features = {**config.input_features, **config.output_features}
    strange = sorted(given.keys() - features.keys())
    if strange:
        raise PolicyError(
            f"policy.dataset_stats: {strange[0]} is no feature of the run",
            rule=f"statistics of its features: {', '.join(features)}",
            remedy=did_you_mean(strange[0], features),
        )
    for key, feature in features.items():
        mode = config.normalization_mapping.get(feature.type.value, NormMode.IDENTITY)
        if key in given:
            found[key] = _given(key, feature, given[key])
            if feature.type is FeatureType.ACTION and demos is not None:
                _refuse_narrow(found[key], demos)
        elif mode is NormMode.IDENTITY:
            continue
        elif feature.type is FeatureType.VISUAL:
            mean, std = (np.array(each).reshape(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
            found[key] = {"mean": mean, "std": std}
        else:
            low, high = _bounds(key, feature, rules, world, demos)
            found[key] = {"min": low, "max": high}
    return found


def _given(key: str, feature: Feature, stats: Mapping[str, list[float]]) -> dict[str, Any]:
    size = feature.shape[0]
    for name, values in stats.items():
        if len(values) != size:
            raise PolicyError(
                f"policy.dataset_stats: {name} of {key} has {len(values)} numbers",
                rule=f"one per dimension: {size}",
                remedy=f"correct it, or leave out {key}",
            )
    low, high = stats.get("min"), stats.get("max")
    if low is not None and high is not None:
        wrong = [n for n, (a, b) in enumerate(zip(low, high, strict=True)) if a >= b]
        if wrong:
            raise PolicyError(
                f"policy.dataset_stats: {key} from {low[wrong[0]]} to {high[wrong[0]]} in "
                f"dimension {wrong[0]}",
                rule="min below max",
                remedy=f"correct it, or leave out {key}",
            )
    shape = (size, 1, 1) if feature.type is FeatureType.VISUAL else (size,)
    return {name: np.array(values).reshape(shape) for name, values in stats.items()}


def _refuse_narrow(stats: Mapping[str, NDArray[Any]], demos: Demos) -> None:
    """Refuse statistics of actions by which demonstrations lie outside the policy's (-1, 1)."""
    if "min" not in stats or "max" not in stats:
        return
    low, high = stats["min"], stats["max"]
    least, most = (values[: len(low)] for values in demos.low_high(ACTION))
    slack = 1e-4 * (high - low)
    wrong = np.flatnonzero((least < low - slack) | (most > high + slack))
    if len(wrong):
        which = int(wrong[0])
        raise PolicyError(
            f"policy.dataset_stats: {ACTION} from {low[which]:g} to {high[which]:g} in dimension "
            f"{which}, demonstrations have {least[which]:g} to {most[which]:g}",
            rule="the policy's actions reach those of the demonstrations",
            remedy=f"widen it, or leave out {ACTION}",
        )


def _bounds(
    key: str, feature: Feature, rules: EnvRules, world: RlEnv, demos: Demos | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    if feature.type is FeatureType.ACTION:
        size = feature.shape[0]
        return rules.how.low[:size], rules.how.high[:size]
    space: Any = world.env.observation_space
    for name in rules.how.views[key].keys:
        space = space[name]
    low, high = (cast("spaces.Box", space).low, cast("spaces.Box", space).high)
    if np.isfinite(low).all() and np.isfinite(high).all() and (np.abs(high) < 1e6).all():
        return low, high
    if demos is not None:
        return demos.low_high(key)
    raise PolicyError(
        f"{key}: {rules.spec.id} names no bounds, and there are no demonstrations",
        rule=f"{feature.type.value} is normalized by its least and largest values",
        remedy=f'--policy.dataset_stats=\'{{"{key}": {{"min": [...], "max": [...]}}}}\', or '
        '--policy.normalization_mapping=\'{"STATE": "IDENTITY", "ENV": "IDENTITY", '
        '"ACTION": "MIN_MAX", "VISUAL": "MEAN_STD"}\'',
    )


def plain_stats(stats: Stats) -> dict[str, dict[str, list[float]]]:
    """Return statistics as LeRobot's config has them."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, named in stats.items():
        found[key] = {name: values.reshape(-1).tolist() for name, values in named.items()}
    return found


def new_policy(config: Config, stats: Stats, seed: int) -> Acting:
    """Return a policy with new weights that follow from the seed, between its pipelines."""
    device = choose_device(config.device)
    torch.manual_seed(seed)
    policy = build_policy(config).to(device)
    assert isinstance(policy, Policy)
    before, after = canonical_pipelines(config, stats, rename_map={}, device=str(device))
    return acting(policy, before, after, device)


@dataclasses.dataclass(frozen=True)
class BufferPlan:
    """The sizes of a run's buffers in observations, known before anything is allocated."""

    schema: Schema
    online: int
    demos: int
    takeovers: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return self.schema.row_bytes * (self.online + self.demos + self.takeovers)

    def lines(self) -> list[str]:
        """Return a line per buffer."""
        parts = {"own episodes": self.online, "demonstrations": self.demos}
        parts["takeovers"] = self.takeovers
        return [buffer_text(name, self.schema, rows) for name, rows in parts.items() if rows]

    def rings(self) -> tuple[Ring, Ring | None, Ring | None]:
        """Return the buffers: own episodes, demonstrations, takeovers."""
        found = [
            Ring(self.schema, rows, name) if rows else None
            for rows, name in (
                (self.online, ONLINE),
                (self.demos, OFFLINE),
                (self.takeovers, OFFLINE),
            )
        ]
        assert found[0] is not None
        return found[0], found[1], found[2]


def plan_buffers(run: RlRun, schema: Schema, demos: Demos | None, max_steps: int) -> BufferPlan:
    """Return the buffers that a run needs, and refuse what cannot be held.

    Raises:
        ConfigError: a buffer is smaller than an episode or the demonstrations, or all of them do
            not fit into memory.
    """
    options = run.policy
    rows = 0 if demos is None else demos.rows
    _refuse_small_offline(run, rows, max_steps + 1 if run.has_takeovers else 0)
    if options.online_buffer_capacity <= max_steps:
        raise ConfigError(
            f"{ONLINE}={options.online_buffer_capacity}: an episode has up to {max_steps + 1} "
            "observations",
            rule="the buffer holds at least one whole episode",
            remedy=f"--{ONLINE}={10 * max_steps}, or fewer steps with --env.max_steps",
        )
    takeovers = options.offline_buffer_capacity - rows if run.has_takeovers else 0
    plan = BufferPlan(schema, options.online_buffer_capacity, rows, takeovers)
    free = free_memory() if run.rl.memory_gb is None else int(run.rl.memory_gb * 1e9)
    if plan.nbytes > free:
        fitting = max(0, free // schema.row_bytes - rows - takeovers)
        raise ConfigError(
            f"buffers of {bytes_text(plan.nbytes)} ({'; '.join(plan.lines())}), and "
            f"{bytes_text(free)} of memory",
            rule="all buffers fit into memory",
            remedy=f"--{ONLINE}={fitting}" + (f" --{OFFLINE}=<less>" if takeovers else "")
            if fitting > max_steps
            else f"a smaller --{OFFLINE}, smaller pictures, or fewer cameras",
        )
    return plan


def _refuse_small_offline(run: RlRun, rows: int, takeover: int) -> None:
    """Refuse a capacity below the rows of demonstrations and of the longest takeover together."""
    capacity = run.policy.offline_buffer_capacity
    if rows + takeover <= capacity:
        return
    found: list[str] = []
    remedy = f"--{OFFLINE}={2 * (rows + takeover)}"
    if rows:
        found.append(f"the demonstrations have up to {rows}")
        remedy += ", or fewer demonstrations with --dataset.episodes"
    if takeover:
        found.append(f"a takeover has up to {takeover}")
        remedy += ", or fewer steps with --env.max_steps"
    raise ConfigError(
        f"{OFFLINE}={capacity} observations: {', and '.join(found)}",
        rule="demonstrations are held as a whole, with room for an episode of takeover",
        remedy=remedy,
    )


def refuse_small_share(run: RlRun, demos: Demos | None) -> None:
    """Refuse demonstrations with fewer steps than a batch takes of them."""
    missing = run.batch_size - run.online_size
    if demos is not None and missing and demos.dataset.num_frames < missing:
        raise ConfigError(
            f"batch_size={run.batch_size}: takes {missing} steps of demonstrations, which have "
            f"{demos.dataset.num_frames}",
            rule="a batch is not larger than what it is drawn from",
            remedy=f"--batch_size={run.batch_size // 2}, or more demonstrations",
        )


def warn_of_traps(run: RlRun, config: Config, spec: EnvSpec) -> None:
    """Log settings that are allowed and learn little."""
    if config.cameras and config.freeze_vision_encoder:
        _log.warning(
            "policy.freeze_vision_encoder=true (LeRobot's default): the image encoder keeps its "
            "random weights; --policy.freeze_vision_encoder=false trains it"
        )
    if run.rl.reward == ENV and spec.id == "kata/Reach-v0":
        _log.warning(
            "rl.reward=env: the built-in task pays 1 per step on the target and ends after 8 in a "
            "row, so leaving the target every 8th step earns more than success; --rl.reward=success"
        )
    _warn_of_narrow_actions(run.algorithm, config)


def _warn_of_narrow_actions(algorithm: SacConfig, config: Config) -> None:
    """Log a largest spread of actions whose entropy stays below what the temperature aims at."""
    size = config.action.shape[0]
    most = config.most_entropy
    goal = algorithm.goal_entropy(size + (config.num_discrete_actions is not None))
    if algorithm.temperature_lr and most < goal:
        _log.warning(
            "policy.policy_kwargs.std_max=%g: the entropy of actions is at most %.2f, and the "
            "temperature rises without end below %.2f; --algorithm.target_entropy=%.1f, or "
            "--algorithm.temperature_lr=0 for a fixed temperature",
            config.policy_kwargs.std_max,
            most,
            goal,
            most - size,
        )
