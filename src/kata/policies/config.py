"""What the configs of all policies share. Torch-free, and free of the flag parser's library.

Field names and defaults are LeRobot's, because `config.json` must load there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from kata.config import encode
from kata.optim.config import AdamConfig, OptimizerConfig, SchedulerConfig
from kata.policies import config_class, policy_types
from kata.spec import ACTION, ENV_STATE, STATE, Draw, Feature, FeatureType, NormMode, Windows

CONFIG, OWN_CONFIG = "config.json", "kata.json"
"""A checkpoint's config as LeRobot reads it, and beside it the options that LeRobot does not know."""


def own(default: Any) -> Any:
    """A config field that LeRobot does not have; its default does what LeRobot does."""
    return field(default=default, metadata={"own": True})


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Base of every policy's config. `type` names the policy and is the first key of config.json."""

    type_name: ClassVar[str] = ""
    masks_action_dims: ClassVar[bool] = False
    """Whether the loss and its denominators leave out action dimensions marked in `action_dim_is_pad`."""

    n_obs_steps: int = 1
    input_features: dict[str, Feature] = field(default_factory=dict)
    output_features: dict[str, Feature] = field(default_factory=dict)
    device: str | None = None
    use_amp: bool = False
    use_peft: bool = False
    push_to_hub: bool = True
    repo_id: str | None = None
    private: bool | None = None
    tags: list[str] | None = None
    license: str | None = None
    pretrained_path: str | None = None
    pretrained_revision: str | None = None
    normalization_mapping: dict[str, NormMode] = field(default_factory=dict)

    # --- the data contract: pure functions of the config ------------------------------------------------------

    def windows(self) -> Windows:
        """Frame offsets around the anchor, per dataset key (before any renaming). Absent keys: the anchor alone."""
        raise NotImplementedError

    def draws(self) -> dict[str, Draw]:
        """Random numbers per sample that `forward` takes, by argument name ('noise', 'time')."""
        return {}

    def act_draws(self) -> dict[str, Draw]:
        """Random numbers per environment that `predict_chunk` takes, by argument name; it draws those not given."""
        return {}

    def chunk_start(self) -> int:
        """Where in the window of actions the chunk begins that `predict_chunk` gives."""
        return 0

    def resizes_to(self) -> tuple[int, int] | None:
        """Height and width that the policy resizes frames to before anything else; None takes them as they are."""
        return None

    def drop_last_frames(self) -> int:
        """How many frames at the end of each episode are no anchors."""
        return 0

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Denominators of the loss terms over a whole global batch, from index arithmetic alone.

        Args:
            size: samples in the global batch.
            pads: `<key>_is_pad` masks of the global batch, bool (size, T), numpy; of a mixture whose actions differ
                in size also `action_dim_is_pad`, bool (size, A).

        Returns: term name -> the count that the term's sum is divided by.
        """
        raise NotImplementedError

    def tokenizer(self) -> dict[str, Any] | None:
        """Options of the step that turns task sentences into tokens; None for policies that read no sentences."""
        return None

    def without_downloads(self) -> PolicyConfig:
        """A copy whose building fetches no pretrained parts, for when all weights come from a checkpoint anyway."""
        return self

    def validate_features(self) -> None:
        """Raise PolicyError when the inputs and outputs do not suit this policy."""
        raise NotImplementedError

    def loss_changes_after(self) -> int:
        """The number of steps after which the loss is another one, not to be compared with those before it; 0: none."""
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

    # --- files ------------------------------------------------------------------------------------------------

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A config.json of another version, with the defaults of that version for fields that it leaves out."""
        return dict(raw)

    def save(self, folder: Path) -> None:
        """Write config.json, and kata.json where options of kata's own differ from their defaults."""
        mine = {f.name: f.default for f in dataclasses.fields(self) if f.metadata.get("own")}
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

    # --- features by role -------------------------------------------------------------------------------------

    @property
    def type(self) -> str:
        """The policy's name in the table, LeRobot's `type`."""
        return self.type_name

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

    # --- lookup by `type`, as the flag parser's choice protocol wants it ---------------------------------------

    @classmethod
    def get_choice_class(cls, name: str) -> type[PolicyConfig]:
        """The config class for a `type`."""
        return config_class(name)

    @classmethod
    def get_known_choices(cls) -> dict[str, Any]:
        """Every policy's config class by name."""
        return {name: config_class(name) for name in policy_types()}

    @classmethod
    def get_choice_name(cls, subcls: type[PolicyConfig]) -> str:
        """The `type` of a config class; ValueError for the base itself, which has none."""
        if not subcls.type_name:
            raise ValueError(f"{subcls.__name__} is chosen by its type")
        return subcls.type_name

    @classmethod
    def default_choice_name(cls) -> str | None:
        """No policy is trained by default: the user names one."""
        return None


@dataclass(frozen=True, kw_only=True)
class AdamPolicyConfig(PolicyConfig):
    """With Adam's rates among the options."""

    optimizer_lr: float = 1e-4
    optimizer_betas: tuple[float, float] = (0.95, 0.999)
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 1e-6

    def optimizer_preset(self) -> AdamConfig:
        """Adam with these rates."""
        return AdamConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
        )
