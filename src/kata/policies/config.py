"""Base classes of policy configs. They import neither torch nor the parser of flags.

Field names and defaults are LeRobot's, because LeRobot loads `config.json`.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kata.config import DEVICE, Chosen, Options, encode, option
from kata.config.option import declaration
from kata.errors import PolicyError
from kata.optim.config import AdamConfig, OptimizerConfig, SchedulerConfig
from kata.policies import config_class, policy_types
from kata.spec import (
    ACTION,
    ENV_STATE,
    STATE,
    Batch,
    Column,
    Draw,
    Feature,
    FeatureType,
    NormMode,
    Stats,
    Windows,
)

if TYPE_CHECKING:
    from kata.processors.pipeline import Pipeline

CONFIG, OWN_CONFIG = "config.json", "kata.json"
"""A checkpoint's config as LeRobot reads it, and beside it the options that LeRobot does not
know.
"""

SHARED_STEPS = (
    "rename_observations_processor",
    "to_batch_processor",
    "device_processor",
    "normalizer_processor",
)
"""The steps before every policy: renaming, the batch axis, the device, normalization."""


ACTION_STEPS = ("unnormalizer_processor", "device_processor")
"""The steps after every policy: back to the robot's units, and to the CPU."""


TokenizerSteps = Mapping[str, tuple[tuple[str, str], ...]]
"""Options that name a tokenizer, with the steps that read it and their options."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Chosen, ABC):
    """Base of every policy's config. `type` names the policy and is the first key of config.json.

    A field that LeRobot does not have is declared with `is_own`; its default gives LeRobot's
    behavior.
    """

    at: ClassVar[str] = "policy."
    refused_with = PolicyError
    is_guest: ClassVar[bool] = False
    """True if another package computes the policy, so that kata knows its parts by name only."""
    masks_action_dims: ClassVar[bool] = False
    """True if the loss and its denominators leave out action dimensions marked in
    `action_dim_is_pad`.
    """
    normalizes_itself: ClassVar[bool] = False
    """True if its own steps normalize, so that all datasets of a mixture share their statistics."""
    tokenizer_steps: ClassVar[TokenizerSteps] = {}
    names_model_by_tokenizer: ClassVar[bool] = False
    """True if those options name a model whose sizes are read, too: a tokenizer is not enough."""
    lora_targets: ClassVar[str] = "all-linear"
    """The linear maps that get an adapter unless options name others: a regular expression for
    LeRobot's names, or all of them.
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
    use_peft: bool = option(False, "LeRobot's mark of an adapter in config.json; --peft.* sets it.")
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
        None,
        "Folder or Hub name whose weights are loaded; --policy.path sets it. A run that continues "
        "may name the new place of its base.",
        may_change=True,
        is_pretrained=True,
    )
    pretrained_revision: str | None = option(
        None, "Branch, tag or commit of policy.path on the Hub."
    )
    normalization_mapping: dict[str, NormMode] = option(
        dict, "Normalization by kind of feature, such as {STATE: MEAN_STD, ACTION: MIN_MAX}."
    )

    # --- the data contract: pure functions of the config
    # ------------------------------------------------------

    @abstractmethod
    def windows(self) -> Windows:
        """Return frame offsets around the anchor by dataset key, before renaming.

        A key that is absent is read at the anchor only.
        """

    def draws(self) -> dict[str, Draw]:
        """Return the random numbers per sample that `forward` takes, by argument name ('noise',
        'time').
        """
        return {}

    def act_draws(self) -> dict[str, Draw]:
        """Return the random numbers per environment that `predict_chunk` takes, by name."""
        return {}

    def counted_draws(self) -> tuple[str, ...]:
        """Return the names of the draws that decide the denominators of the loss.

        `loss_weights` gets them beside the masks, under these names.
        """
        return ()

    def refuse_delay(self, delay: int) -> None:
        """Raise PolicyError unless the policy can act while a prediction takes `delay` steps."""
        if delay:
            raise PolicyError(
                f"eval.inference_delay={delay} with {self.type}",
                rule="policies that denoise chunks act while they predict",
                remedy="leave out --eval.inference_delay",
            )

    def told_of_delay(self, delay: int) -> dict[str, Any]:
        """Return what decides how the policy acts while it predicts, for the result's file."""
        del delay
        return {}

    def relative_dimensions(self) -> list[bool] | None:
        """Return which numbers of the action are relative to the state; None if none can be."""
        return None

    def steps_measured_apart(self) -> int:
        """Return the steps of a chunk whose relative actions are measured each for itself; 0
        measures all steps together.
        """
        return 0

    def blank_inputs(self, batch: Batch, size: int) -> Batch:
        """Return a batch of zeros as the policy's own steps would leave it, for `kata plan`.

        Args:
            batch: as the dataset gives it, frames as floats.
            size: number of samples.
        """
        del size
        return batch

    def chunk_start(self) -> int:
        """Return the index in the window of actions at which a predicted chunk begins."""
        return 0

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that frames have after the policy's first resizing, without padding.

        Args:
            size: height and width of recorded frames, in pixels.
        """
        return size

    def drop_last_frames(self) -> int:
        """Return the number of frames at the end of each episode that cannot be anchors."""
        return 0

    @abstractmethod
    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the denominators of the loss terms over a whole global batch, from index
        arithmetic alone.

        Args:
            size: samples in the global batch.
            pads: `<key>_is_pad` masks of the global batch, NumPy bool (size, T). In a mixture
                whose actions differ in size also `action_dim_is_pad`, bool (size, A). Also the
                draws that `counted_draws` names.

        Returns:
            Count that each term's sum is divided by, by term name.
        """

    def loss_counts(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the samples' parts of denominators that follow from values, such as numbers of
        tokens; `loss_weights` gives the other denominators.

        Args:
            batch: a micro-batch on the device, as `forward` gets it.

        Returns:
            A tensor (B,) by term name; its sums over the global batch are the denominators, and
            at least 1.
        """
        del batch
        return {}

    def action_tokens(self) -> int:
        """Return the most tokens that a chunk of actions is written in; 0 if it stays numbers."""
        return 0

    def tokenizer(self) -> dict[str, Any] | None:
        """Return options of the step that tokenizes task sentences; None if the policy reads no
        sentences.
        """
        return None

    @property
    def cuts_prompts(self) -> bool:
        """Return True if sentences that are longer than the policy reads may be cut."""
        return False

    def frozen_features(self) -> dict[str, tuple[str, ...]]:
        """Return what a frozen part makes of a sample and a cache may keep, by kind, deepest first.

        The values are the keys of a batch that `forward` does not read once it has the features.
        Kinds are those of `dataset.cache`: 'prefix', all that the trained part reads of an
        observation, and 'vision', the tokens of cameras alone. Empty if all parts are trained.
        """
        return {}

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy in order, as LeRobot's names and their options.

        The steps of `SHARED_STEPS` have no options here: `canonical_pipelines` makes them.
        """
        tokenizer = self.tokenizer()
        sentences = [] if tokenizer is None else [("tokenizer_processor", tokenizer)]
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        return [rename, add_axis, *sentences, move, normalize]

    def action_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps after the policy in order, as LeRobot's names and their options."""
        return [(name, {}) for name in ACTION_STEPS]

    def own_precision(self) -> str:
        """Return the mixed precision that the policy's own options ask for: 'no', 'bf16', 'fp16'.

        LeRobot's `use_amp` means bf16.
        """
        return "bf16" if self.use_amp else "no"

    def own_pipelines(
        self, stats: Stats, *, rename_map: dict[str, str], device: str
    ) -> tuple[Pipeline, Pipeline] | None:
        """Return the pipelines of a policy that brings its own; None for the steps listed above.

        Args:
            stats: of the frames that are trained on, by the policy's names.
            rename_map: dataset key -> policy key.
            device: the policy's device.
        """
        del stats, rename_map, device

    def saved_pipelines(self, folder: Path, device: str) -> tuple[Pipeline, Pipeline] | None:
        """Return the pipelines of a checkpoint of a policy that reads its own; else None.

        Args:
            folder: a `pretrained_model` folder.
            device: the policy's device.
        """
        del folder, device

    def with_columns(self, columns: Mapping[str, Column]) -> PolicyConfig:
        """Return a copy that knows the columns of the dataset, if the policy needs them."""
        del columns
        return self

    def without_downloads(self) -> PolicyConfig:
        """Return a copy that builds without pretrained parts, for weights that come from a
        checkpoint.
        """
        return self

    def planned(self) -> PolicyConfig:
        """Return a copy for `kata plan`, which builds without pretrained parts and a network."""
        return self.without_downloads()

    @abstractmethod
    def validate_features(self) -> None:
        """Raise PolicyError if the inputs and outputs do not suit this policy."""

    def accepts(self, key: str, available: Mapping[str, Feature]) -> bool:
        """Return True if this policy's feature `key` can be had from a dataset with these features.

        By default the dataset has an equal one. Frames may have another size, since they pass
        through the same convolutions.
        """
        feature = {**self.input_features, **self.output_features}[key]
        have = available.get(key)
        if have is None or have.type is not feature.type:
            return False
        is_camera = feature.type is FeatureType.VISUAL
        return have.shape[0] == feature.shape[0] if is_camera else have == feature

    def loss_changes_after(self) -> int:
        """Return the number of steps after which the loss has another meaning; 0 if it never
        changes.

        Losses before and after that step cannot be compared.
        """
        return 0

    def validate_steps(self, steps: int) -> None:
        """Raise PolicyError if `steps` steps are too few to train this policy."""
        del steps

    @abstractmethod
    def optimizer_preset(self) -> OptimizerConfig:
        """Return the optimizer config that is used unless options set another."""

    def scheduler_preset(self) -> SchedulerConfig | None:
        """Return the learning-rate schedule that is used unless options set another; None is
        constant.
        """
        return None

    # --- files

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config.json of another version, completed with the defaults of that version."""
        return dict(raw)

    @classmethod
    def options_beside(cls, folder: Path) -> dict[str, Any]:
        """Return options of kata's own that other files of a checkpoint hold.

        Args:
            folder: a `pretrained_model` folder; kata.json there takes precedence.
        """
        del folder
        return {}

    def written(self) -> dict[str, Any]:
        """Return the options as plain values, as files have them."""
        return encode(self)

    def save(self, folder: Path) -> None:
        """Write config.json, and kata.json where options of kata's own differ from their
        defaults.
        """
        plain = self.written()
        files = {OWN_CONFIG: _take_own(self, plain), CONFIG: plain}
        for name, values in files.items():
            if values:
                (folder / name).write_text(
                    json.dumps(values, indent=4, ensure_ascii=False), encoding="utf-8"
                )

    # --- features by role
    # -------------------------------------------------------------------------------------

    @property
    def cameras(self) -> dict[str, Feature]:
        """Return the camera inputs in the order in which the policy stacks them."""
        return {k: f for k, f in self.input_features.items() if f.type is FeatureType.VISUAL}

    @property
    def state(self) -> Feature | None:
        """Return the robot's state, or None if the policy does not read one."""
        return self.input_features.get(STATE)

    @property
    def env_state(self) -> Feature | None:
        """Return the environment's state, or None if the policy does not read one."""
        return self.input_features.get(ENV_STATE)

    @property
    def action(self) -> Feature:
        """Return the action feature."""
        return self.output_features[ACTION]

    @property
    def action_size(self) -> int:
        """Return the numbers of an action as an environment takes it.

        The policy may put more behind its action feature, such as the number of a gripper's state.
        """
        return self.action.shape[0]

    def with_features(
        self, inputs: dict[str, Feature], outputs: dict[str, Feature]
    ) -> PolicyConfig:
        """Return a copy with these inputs and outputs."""
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


def _take_own(options: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """Take options of kata's own out of `plain`, and return those that are not at their default."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        inner = options.__dict__[field.name]
        if declaration(type(options), field.name).is_own:
            value = plain.pop(field.name)
            if value != encode(_default(field)):
                changed[field.name] = value
        elif isinstance(inner, Options) and isinstance(plain.get(field.name), dict):
            below = _take_own(inner, plain[field.name])
            if below:
                changed[field.name] = below
    return changed


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default, also one that is made for each config."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


@dataclass(frozen=True, kw_only=True)
class AdamPolicyConfig(PolicyConfig):
    """A config with the options of Adam."""

    optimizer_lr: float = option(1e-4, "Learning rate of the policy's own preset.", least=0)
    optimizer_betas: tuple[float, float] = option(
        (0.95, 0.999), "Adam's two betas.", least=0, below=1
    )
    optimizer_eps: float = option(1e-8, "Adam's epsilon.", above=0)
    optimizer_weight_decay: float = option(1e-6, "Adam's weight decay.", least=0)

    def optimizer_preset(self) -> AdamConfig:
        """Return Adam with the options of this config."""
        return AdamConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
        )
