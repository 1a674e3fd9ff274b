"""What the configs of all policies share. Torch-free, and free of the flag parser's library.

Field names and defaults are LeRobot's, because `config.json` must load there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kata.config import DEVICE, Chosen, encode, option
from kata.config.option import declaration
from kata.errors import PolicyError
from kata.optim.config import AdamConfig, OptimizerConfig, SchedulerConfig
from kata.policies import config_class, policy_types
from kata.spec import ACTION, ENV_STATE, STATE, Draw, Feature, FeatureType, NormMode, Windows

CONFIG, OWN_CONFIG = "config.json", "kata.json"
"""A checkpoint's config as LeRobot reads it, and beside it the options that LeRobot does not
know.
"""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Chosen):
    """Base of every policy's config. `type` names the policy and is the first key of config.json.

    A field that LeRobot does not have is declared with `is_own`; its default does what LeRobot
    does.
    """

    at: ClassVar[str] = "policy."
    refused_with = PolicyError
    masks_action_dims: ClassVar[bool] = False
    """Whether the loss and its denominators leave out action dimensions marked in
    `action_dim_is_pad`.
    """
    beside: ClassVar[dict[str, str]] = {
        "path": "Policy to continue from: a checkpoint, a run folder or a Hub name. Its config and "
        "weights are loaded; it takes the place of policy.type."
    }

    n_obs_steps: int = option(
        1, "Observation steps that the policy sees, the latest included.", least=1
    )
    input_features: dict[str, Feature] = option(
        dict,
        "Inputs by key, {key: {type: STATE|VISUAL|ENV, shape: [...]}}; cameras as [3, H, W]. Empty "
        "takes all that the dataset has.",
    )
    output_features: dict[str, Feature] = option(
        dict, "Outputs by key, as input_features. Empty takes the dataset's action."
    )
    device: str | None = option(
        None,
        "Device to compute on. null takes the best one here: cuda, then mps, then cpu.",
        form=DEVICE,
        is_common=True,
        may_change=True,
    )
    use_amp: bool = option(
        False, "Compute in bf16 unless accelerator.mixed_precision says otherwise."
    )
    use_peft: bool = option(False, "LeRobot's switch for adapters; kata has none, true is refused.")
    push_to_hub: bool = option(
        True,
        "Upload the final policy to the Hub, where repo_id names a repository.",
        may_change=True,
    )
    repo_id: str | None = option(
        None, "Hub repository for the final policy, <user>/<name>.", is_common=True, may_change=True
    )
    private: bool | None = option(
        None, "Make that repository private. null takes the account's default.", may_change=True
    )
    tags: list[str] | None = option(None, "Tags on the model card.", may_change=True)
    license: str | None = option(None, "License on the model card, such as mit.", may_change=True)
    pretrained_path: str | None = option(
        None, "Folder or Hub name whose weights are loaded; --policy.path sets it."
    )
    pretrained_revision: str | None = option(
        None, "Branch, tag or commit of policy.path on the Hub."
    )
    normalization_mapping: dict[str, NormMode] = option(
        dict, "Normalization by kind of feature, such as {STATE: MEAN_STD, ACTION: MIN_MAX}."
    )

    # --- the data contract: pure functions of the config
    # ------------------------------------------------------

    def windows(self) -> Windows:
        """Frame offsets around the anchor, per dataset key (before any renaming).

        Absent keys: the anchor alone.
        """
        raise NotImplementedError

    def draws(self) -> dict[str, Draw]:
        """Random numbers per sample that `forward` takes, by argument name ('noise', 'time')."""
        return {}

    def act_draws(self) -> dict[str, Draw]:
        """Random numbers per environment that `predict_chunk` takes, by argument name; it draws
        those not given.
        """
        return {}

    def chunk_start(self) -> int:
        """Where in the window of actions the chunk begins that `predict_chunk` gives."""
        return 0

    def resizes_to(self) -> tuple[int, int] | None:
        """Height and width that the policy resizes frames to before anything else; None takes
        them as they are.
        """
        return None

    def drop_last_frames(self) -> int:
        """How many frames at the end of each episode are no anchors."""
        return 0

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Denominators of the loss terms over a whole global batch, from index arithmetic alone.

        Args:
            size: samples in the global batch.
            pads: `<key>_is_pad` masks of the global batch, bool (size, T), numpy; of a mixture
                whose actions differ
                in size also `action_dim_is_pad`, bool (size, A).

        Returns: term name -> the count that the term's sum is divided by.
        """
        raise NotImplementedError

    def tokenizer(self) -> dict[str, Any] | None:
        """Options of the step that turns task sentences into tokens; None for policies that read
        no sentences.
        """
        return None

    def without_downloads(self) -> PolicyConfig:
        """A copy whose building fetches no pretrained parts, for when all weights come from a
        checkpoint anyway.
        """
        return self

    def validate_features(self) -> None:
        """Raise PolicyError when the inputs and outputs do not suit this policy."""
        raise NotImplementedError

    def loss_changes_after(self) -> int:
        """The number of steps after which the loss is another one, not to be compared with those
        before it; 0: none.
        """
        return 0

    def validate_steps(self, steps: int) -> None:
        """Raise PolicyError when a run of `steps` steps is too short to train this policy."""
        del steps

    def optimizer_preset(self) -> OptimizerConfig:
        """The optimiser this policy is trained with unless flags say otherwise."""
        raise NotImplementedError

    def scheduler_preset(self) -> SchedulerConfig | None:
        """The learning-rate schedule this policy is trained with; None is a constant rate."""
        return None

    # --- files

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A config.json of another version, with the defaults of that version for fields that it
        leaves out.
        """
        return dict(raw)

    def save(self, folder: Path) -> None:
        """Write config.json, and kata.json where options of kata's own differ from their
        defaults.
        """
        every = dataclasses.fields(self)
        mine = {f.name: f.default for f in every if declaration(type(self), f.name).is_own}
        plain = encode(self)
        changed = {
            name: plain[name] for name, default in mine.items() if plain[name] != encode(default)
        }
        files = {
            CONFIG: {name: value for name, value in plain.items() if name not in mine},
            OWN_CONFIG: changed,
        }
        for name, values in files.items():
            if values:
                (folder / name).write_text(
                    json.dumps(values, indent=4, ensure_ascii=False), encoding="utf-8"
                )

    # --- features by role
    # -------------------------------------------------------------------------------------

    @property
    def cameras(self) -> dict[str, Feature]:
        """Camera inputs in the order that the policy stacks them."""
        return {k: f for k, f in self.input_features.items() if f.type is FeatureType.VISUAL}

    @property
    def state(self) -> Feature | None:
        """The robot's state, or None when the policy has none."""
        return self.input_features.get(STATE)

    @property
    def env_state(self) -> Feature | None:
        """The environment's state, or None when the policy has none."""
        return self.input_features.get(ENV_STATE)

    @property
    def action(self) -> Feature:
        """The action; every policy has one."""
        return self.output_features[ACTION]

    def with_features(
        self, inputs: dict[str, Feature], outputs: dict[str, Feature]
    ) -> PolicyConfig:
        """A copy with these inputs and outputs."""
        return dataclasses.replace(self, input_features=inputs, output_features=outputs)

    # --- lookup by `type` ---------------------------------------------------------------------

    @classmethod
    def type_names(cls) -> list[str]:
        """Return the names of all policies, those of other packages included."""
        return list(policy_types())

    @classmethod
    def type_class(cls, name: str) -> type[PolicyConfig]:
        """Return the config class for a `type`."""
        return config_class(name)


@dataclass(frozen=True, kw_only=True)
class AdamPolicyConfig(PolicyConfig):
    """With Adam's rates among the options."""

    optimizer_lr: float = option(1e-4, "Learning rate of the policy's own preset.", least=0)
    optimizer_betas: tuple[float, float] = option(
        (0.95, 0.999), "Adam's two betas.", least=0, below=1
    )
    optimizer_eps: float = option(1e-8, "Adam's epsilon.", above=0)
    optimizer_weight_decay: float = option(1e-6, "Adam's weight decay.", least=0)

    def optimizer_preset(self) -> AdamConfig:
        """Adam with these rates."""
        return AdamConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
        )
