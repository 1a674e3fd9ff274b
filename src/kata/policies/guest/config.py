"""Options of a guest: a dataclass that is made from LeRobot's config class.

Names, defaults and help are LeRobot's. LeRobot checks the values, gives windows, features and
presets, and writes config.json.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kata.config import decode, encode, option
from kata.errors import ConfigError, PolicyError
from kata.files import write_json
from kata.optim.config import OptimizerConfig, SchedulerConfig
from kata.policies.config import OWN_CONFIG, PolicyConfig
from kata.policies.guest.library import GUEST_PREFIX, config_fields, config_kind, draccus
from kata.spec import ACTION, REWARD, Column, Feature, FeatureType, NormMode, Stats, Windows

if TYPE_CHECKING:
    from kata.processors.pipeline import Pipeline

_DOWNLOADED: dict[str, Any] = {"pretrained_backbone_weights": None, "load_vlm_weights": False}
"""Fields of LeRobot's policies that ask for pretrained parts, and what asks for none."""

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_HELP_MOST = 180
REFUSED = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    NotImplementedError,
    ImportError,
    OSError,
)
"""Errors with which LeRobot's configs refuse options."""


@dataclass(frozen=True, kw_only=True)
class GuestConfig(PolicyConfig):
    """Base of the options of guests. `guest_class` makes the class of one policy.

    Attributes:
        lerobot_name: LeRobot's name of the policy.
        is_per_sample: True if LeRobot's policy gives the loss of each sample.
    """

    is_guest: ClassVar[bool] = True
    lerobot_name: ClassVar[str] = ""
    own_fields: ClassVar[tuple[str, ...]] = ("dataset_features",)

    dataset_features: dict[str, Any] = option(
        dict,
        "Columns of the dataset with their sizes and names, for policies that read them; taken "
        "from the dataset.",
        is_own=True,
    )

    def __post_init__(self) -> None:
        """Let LeRobot check the values."""
        super().__post_init__()
        self.as_lerobot()

    def as_lerobot(self) -> Any:
        """Return LeRobot's config with these values.

        Raises:
            PolicyError: LeRobot refuses them.
        """
        kind = config_kind(self.lerobot_name)
        values = {name: each for name, each in encode(self).items() if name in config_fields(kind)}
        with self._refusing():
            # LeRobot replaces a device that it is not given, and warns of it.
            made = draccus().decode(kind, values | {"device": self.device or "cpu"})
            self._tell_columns(made)
        return made

    def _tell_columns(self, made: Any) -> None:
        """Give LeRobot's config the names in the dataset, where it has a place for them."""
        names = self.dataset_features.get(ACTION, {}).get("names")
        if names is not None and "action_feature_names" in config_fields(type(made)):
            made.action_feature_names = list(names)
        takes = inspect.getattr_static(made, "set_dataset_feature_metadata", None)
        if self.dataset_features and takes is not None:
            made.set_dataset_feature_metadata(self.dataset_features)

    def _refusing(self) -> _Refusing:
        return _Refusing(self.type)

    def with_columns(self, columns: Mapping[str, Column]) -> PolicyConfig:
        """Return a copy that knows the columns of the dataset."""
        told: dict[str, Any] = {}
        for key, column in columns.items():
            names = None if column.names is None else list(column.names)
            told[key] = {"dtype": column.dtype, "shape": list(column.shape), "names": names}
        return dataclasses.replace(self, dataset_features=told)

    def windows(self) -> Windows:
        """Return LeRobot's delta timestamps, in frames."""
        made = self.as_lerobot()
        found: Windows = {}
        if made.observation_delta_indices is not None:
            offsets = tuple(made.observation_delta_indices)
            observed = [key for key in self.input_features if key.startswith("observation.")]
            found.update(dict.fromkeys(observed, offsets))
        if made.action_delta_indices is not None:
            found[ACTION] = tuple(made.action_delta_indices)
        if made.reward_delta_indices is not None:
            found[REWARD] = tuple(made.reward_delta_indices)
        return found

    def chunk_start(self) -> int:
        """Return the place in the window of actions of the action at the anchor."""
        offsets = self.windows().get(ACTION, (0,))
        return offsets.index(0) if 0 in offsets else 0

    def drop_last_frames(self) -> int:
        """Return LeRobot's `drop_n_last_frames`, which some policies have as a field."""
        return int(vars(self.as_lerobot()).get("drop_n_last_frames") or 0)

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the number of samples: each has the same part in the loss."""
        del pads
        return {"loss": float(size)}

    def own_precision(self) -> str:
        """Return the precision that LeRobot's script trains this policy in."""
        if "dtype" in vars(self):
            return _PRECISIONS.get(str(vars(self)["dtype"]), "no")
        return super().own_precision()

    def without_downloads(self) -> PolicyConfig:
        """Return a copy that builds without pretrained parts, as far as the policy has options
        for it.
        """
        known = {name: value for name, value in _DOWNLOADED.items() if name in vars(self)}
        return dataclasses.replace(self, **known)

    def validate_features(self) -> None:
        """Raise PolicyError if LeRobot refuses the inputs and outputs."""
        with self._refusing():
            self.as_lerobot().validate_features()
        if ACTION not in self.output_features:
            raise PolicyError(
                f"{self.type}: no '{ACTION}'", rule="it predicts actions", remedy="record one"
            )

    def optimizer_preset(self) -> OptimizerConfig:
        """Return LeRobot's preset; a preset of another kind as the torch optimizer that it makes.

        Raises:
            PolicyError: the preset has several optimizers.
        """
        preset = self.as_lerobot().get_optimizer_preset()
        raw: dict[str, Any] = encode(preset)
        raw.pop("type", None)
        name = str(preset.type)
        if name not in OptimizerConfig.members:
            # Imported here: torch is not needed for the presets that kata has by name.
            from kata.policies.guest.optimizer_kind import kind_of_preset

            name = kind_of_preset(preset, self.type)
        known: Any = OptimizerConfig.type_class(name)
        names = {field.name for field in dataclasses.fields(known)}
        given = {name: value for name, value in raw.items() if name in names}
        return decode(OptimizerConfig, {"type": name, **given}, at="optimizer")

    def scheduler_preset(self) -> SchedulerConfig | None:
        """Return LeRobot's preset of the learning rate.

        Raises:
            PolicyError: kata has no schedule of that name.
        """
        preset = self.as_lerobot().get_scheduler_preset()
        if preset is None:
            return None
        if str(preset.type) not in SchedulerConfig.members:
            raise PolicyError(
                f"{self.type}: its preset asks for the schedule {preset.type}",
                rule=f"schedules that kata has: {', '.join(sorted(SchedulerConfig.members))}",
                remedy="name optimizer and schedule: --use_policy_training_preset=false "
                "--optimizer.type=adamw --optimizer.lr=1e-4",
            )
        raw = {name: value for name, value in encode(preset).items() if value is not None}
        return decode(SchedulerConfig, {**raw, "type": str(preset.type)}, at="scheduler")

    def own_pipelines(
        self, stats: Stats, *, rename_map: dict[str, str], device: str
    ) -> tuple[Pipeline, Pipeline]:
        """Return LeRobot's processors of this policy, with these statistics."""
        from kata.policies.guest.guest_pipeline import new_pipelines  # here, for it imports torch

        return new_pipelines(self, stats, rename_map=rename_map, device=device)

    def saved_pipelines(self, folder: Path, device: str) -> tuple[Pipeline, Pipeline]:
        """Return LeRobot's processors as they are in a checkpoint."""
        from kata.policies.guest.guest_pipeline import load_pipelines  # here, for it imports torch

        return load_pipelines(self, folder, device)

    def save(self, folder: Path) -> None:
        """Write config.json as LeRobot does, and the type beside it, which LeRobot ignores."""
        made = self.as_lerobot()
        with self._refusing():
            made.validate_features()
        made.device = self.device
        made._save_pretrained(folder)  # pyright: ignore[reportPrivateUsage]
        own = {name: encode(vars(self)[name]) for name in self.own_fields}
        write_json(folder / OWN_CONFIG, {"type": self.type, **own})


class _Refusing:
    """A context that turns errors of LeRobot's configs into PolicyError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or not (isinstance(error, REFUSED) or _is_parsing(error)):
            return
        cause = error
        while cause.__cause__ is not None:  # draccus says what it did, and LeRobot what is wrong
            cause = cause.__cause__
        first = " ".join(str(cause).split())
        raise PolicyError(
            f"{self._what}: {first}",
            rule="LeRobot checks the options and features of its policies itself",
            remedy=f"`kata train --policy.type={self._what} --help` lists the options",
        ) from error


def _is_parsing(error: BaseException) -> bool:
    return isinstance(error, draccus().ParsingError)


@functools.cache
def guest_class(policy_type: str) -> type[PolicyConfig]:
    """Return the class of options of a guest.

    Args:
        policy_type: LeRobot's name behind `lerobot.`, such as 'lerobot.act'.

    Raises:
        ConfigError: LeRobot is not installed, or has no such policy.
    """
    name = policy_type.removeprefix(GUEST_PREFIX)
    kind = config_kind(name)
    if name == "gaussian_actor":
        raise ConfigError(
            f"policy.type={policy_type}: it has no loss of its own",
            rule="a guest's forward pass gives the loss; this one is trained by reinforcement",
            remedy="train kata's own: kata rl train",
        )
    hints = typing.get_type_hints(kind)
    shared = {field.name: field for field in dataclasses.fields(GuestConfig)}
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(kind):
        default = _default(field)
        if field.name in shared:
            hint = typing.get_type_hints(GuestConfig)[field.name]
            fields.append((field.name, hint, _plain_field(_shared_default(field.name, default))))
        else:
            hint = _hint(hints[field.name])
            value = encode(default) if hint is Any else default
            if hint is int and isinstance(value, bool):
                value = int(value)  # as in ACT's replace_final_stride_with_dilation
            fields.append((field.name, hint, _declared(value, _help(kind, field.name))))
    return dataclasses.make_dataclass(
        f"Guest_{name}",
        fields,
        bases=(GuestConfig,),
        namespace={"type_name": policy_type, "lerobot_name": name, "__doc__": f"{name}'s options."},
        frozen=True,
        kw_only=True,
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _shared_default(name: str, default: Any) -> Any:
    """Return LeRobot's default of a field that every policy has, in kata's types."""
    if name == "normalization_mapping":
        return {str(key): NormMode(mode.value) for key, mode in default.items()}
    if name in ("input_features", "output_features"):
        given: dict[str, Any] = default or {}
        return {
            key: Feature(FeatureType(each.type.value), tuple(each.shape))
            for key, each in given.items()
        }
    return default


def _plain_field(value: Any) -> Any:
    if isinstance(value, dict | list):
        return dataclasses.field(default_factory=lambda: value)
    return dataclasses.field(default=value)


def _declared(value: Any, says: str) -> Any:
    if isinstance(value, dict | list):
        return option(lambda: value, says)
    return option(value, says)


def _hint(hint: Any) -> Any:
    """Return a type as kata reads it from flags; Any for one that LeRobot alone can read."""
    return hint if _is_plain(hint) else Any


def _is_plain(hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in (bool, int, float, str, type(None), Ellipsis):
        return True
    if origin in (list, tuple, dict, types.UnionType, typing.Union):
        return bool(inner) and all(_is_plain(each) for each in inner)
    return False


def _help(kind: Any, name: str) -> str:
    """Return a sentence of help: what LeRobot's source says of a field, cut to a line."""
    try:
        found = draccus("wrappers.docstring").get_attribute_docstring(kind, name)
        said = found.docstring_below or found.comment_above or found.comment_inline
    except (AttributeError, OSError, RuntimeError, TypeError):
        said = ""  # the source is not there
    text = " ".join(said.split()) or _from_docstring(kind, name)
    if len(text) > _HELP_MOST:
        text = text[: text.rfind(" ", 0, _HELP_MOST)] + " …"
    return text or f"LeRobot's option {name}."


def _from_docstring(kind: Any, name: str) -> str:
    """Return what a class's list of arguments says of a field."""
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    found: list[str] = []
    for line in lines:
        words = line.strip()
        if words.startswith(f"{name}:"):
            found.append(words.partition(":")[2].strip())
        elif found and line.startswith("        "):
            found.append(words)
        elif found:
            break
    return " ".join(found)
