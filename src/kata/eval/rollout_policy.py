"""A policy that is ready to act: observations in, actions in the robot's units out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kata.config import decode
from kata.data.sampling.philox import draw
from kata.errors import PolicyError
from kata.finetune.weights import load_policy
from kata.policies import build_policy
from kata.policies.base import ActState, Policy, Source
from kata.policies.config import PolicyConfig
from kata.policies.device import choose_device
from kata.policies.pipelines import renamed_inputs, saved_pipelines
from kata.policies.rtc import RtcChanges
from kata.policies.vla import VlaConfig
from kata.processors import Pipeline, Rename, ToDevice, frames_to_float
from kata.processors.pretrained import PretrainedError
from kata.run import policy_folder, read_policy_config
from kata.spec import ACTION, ORIGIN, TASK, Batch, Draw


@dataclass(frozen=True)
class Acting:
    """A policy between its pipelines. renamed: policy key -> the key that the training data had for
    it.

    Make one with `acting`, which keeps the pipelines from renaming what is named for the policy
    already.
    """

    policy: Policy
    before: Pipeline
    after: Pipeline
    device: torch.device
    renamed: dict[str, str] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> PolicyConfig:
        """The policy's config."""
        return self.policy.config

    # not inference_mode: a policy may keep tensors made here and train with them later
    @torch.no_grad()
    def act(
        self,
        observations: Mapping[str, NDArray[Any]],
        task: str,
        state: ActState,
        source: Source | None = None,
    ) -> tuple[NDArray[np.float32], ActState]:
        """The next actions, float32 (B, A), and the state for the step after.

        Args:
            observations: by policy key, cameras uint8 (B, H, W, C), the rest float32 (B, D).
            task: the sentence for all of them.
            state: what `policy.init_state(B)` or the last call gave.
            source: random numbers for policies that draw as they act; None is torch's stream.
        """
        batch: Batch = {}
        if self.policy.needs_observation(state):
            batch = self._prepared(observations, task)
        given, state = self.policy.act(batch, dataclasses.replace(state, source=source))
        # The copy waits for the device; one that does not wait hands over numbers that are not
        # there yet.
        given = given.float().cpu()
        # What is behind the action feature, such as a gripper's choice, has no scale. A guest's
        # actions may be wider than the dataset's; its own processors cut them.
        width = given.shape[1] if self.config.is_guest else self.config.action.shape[0]
        action, rest = given.tensor_split([width], dim=1)
        found: Batch = {ACTION: action}
        if ORIGIN in state.memory:
            found[ORIGIN] = state.memory[ORIGIN].cpu()
        return torch.cat((self.after(found)[ACTION], rest), 1).numpy(), state

    def _prepared(self, observations: Mapping[str, NDArray[Any]], task: str) -> Batch:
        """Return observations as the policy reads them, on its device."""
        batch: Batch = {
            key: torch.from_numpy(value).to(self.device) for key, value in observations.items()
        }
        tasks = [task] * len(next(iter(batch.values())))
        return self.before(frames_to_float({**batch, TASK: tasks}, self.config.cameras))


def episode_source(seeds: Sequence[int], step: int, device: torch.device) -> Source:
    """Numbers that follow from each episode's seed and the step in it, whatever else is in the
    batch.
    """

    def numbers(name: str, wanted: Draw) -> torch.Tensor:
        each = [draw(seed, np.array([step]), f"act {name}", wanted) for seed in seeds]
        return torch.from_numpy(np.concatenate(each)).to(device)

    return numbers


def acting(
    policy: Policy, before: Pipeline, after: Pipeline, device: torch.device, source: str = ""
) -> Acting:
    """A policy in memory with the pipelines it is trained with, ready to act."""
    policy.use_pipeline(before)
    renamed = renamed_inputs(before)
    no_rename = {Rename.registry_name: Rename({})}
    return Acting(
        policy,
        before.replaced(**no_rename),
        after.replaced(**{ToDevice.registry_name: ToDevice("cpu")}),
        device,
        renamed,
        source,
    )


def _changed(config: PolicyConfig, changes: Mapping[str, Any]) -> PolicyConfig:
    """Return a config with these options; PolicyError for one that it does not have."""
    known = {field.name for field in dataclasses.fields(config)}
    for name in changes:
        if name not in known:
            raise PolicyError(
                f"policy.{name} with {config.type}",
                rule="an option of this policy",
                remedy=f"leave out --policy.{name}",
            )
    wanted = dict(changes)
    chunking = wanted.get("rtc_config")
    if isinstance(chunking, RtcChanges) and isinstance(config, VlaConfig):
        wanted["rtc_config"] = chunking.over(config.rtc_config)
    return dataclasses.replace(config, **wanted)


def load_for_acting(
    path: str,
    device: str | None = None,
    revision: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Acting:
    """A checkpoint, LeRobot's or kata's, ready to act in float32.

    Args:
        path: a `pretrained_model` folder, a run folder (its last checkpoint), or a Hub name.
        device: None is the best device here.
        revision: of the Hub repository.
        changes: options that take the place of the policy's own, by name.

    Raises: PolicyError or CheckpointError naming what is absent, damaged or does not fit.
    """
    notes: list[str] = []
    folder = policy_folder(path, revision)
    config = decode(
        PolicyConfig, read_policy_config(folder, notes), at="policy"
    ).without_downloads()
    config = _changed(config, changes or {})
    place = choose_device(device)
    try:
        before, after = saved_pipelines(config, folder, str(place), changes)
        policy = build_policy(config)
    except PretrainedError as error:
        named = " ".join(f"--policy.{name}=<folder>" for name in config.tokenizer_steps)
        remedy = f"name the folder here: {named}" if named else error.remedy
        raise PolicyError(error.what, rule=error.rule, remedy=remedy) from error
    load_policy(policy, folder)
    ready = acting(policy.to(place).eval(), before, after, place, str(folder))
    return dataclasses.replace(ready, notes=tuple(notes))
