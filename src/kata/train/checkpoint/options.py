"""The options of the `kata checkpoint` verbs. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from kata.config import HUB_NAME, REQUIRED, Options, option
from kata.errors import ConfigError
from kata.run.parallel import FORMATS


@dataclass(frozen=True, kw_only=True)
class PathOptions(Options):
    """Options of `kata checkpoint list` and `verify`."""

    path: str = option(
        REQUIRED,
        "Run folder (its last checkpoint, where one is meant), checkpoint, or its "
        "pretrained_model; "
        "it also stands first, without a name.",
    )


@dataclass(frozen=True, kw_only=True)
class PruneOptions(PathOptions):
    """Options of `kata checkpoint prune`."""

    keep_last: int = option(0, "Newest checkpoints that stay.", least=0)
    keep_every: int = option(0, "Checkpoints of each so many steps stay.", least=0)
    keep_best: int = option(0, "Checkpoints of lowest validation error that stay.", least=0)
    dry_run: bool = option(False, "Say what would be removed, and remove nothing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.keep_last or self.keep_every or self.keep_best):
            raise ConfigError(
                "checkpoint prune: no rule",
                rule="at least one of --keep_last, --keep_every and --keep_best says what stays",
                remedy="for example --keep_last=2",
            )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(PathOptions):
    """Options of `kata checkpoint export`."""

    out: str = option(REQUIRED, "Folder of the export; it must not exist.")
    merge: bool = option(
        False, "Add an adapter to its base, so that the export holds all weights and no adapter."
    )
    dtypes_of: str | None = option(
        None,
        "Checkpoint, by folder or Hub name, whose precision each tensor is written in, such as the "
        "base that LeRobot published. Tensors that it lacks keep theirs.",
    )
    raw: bool = option(
        False, "Write a checkpoint of GR00T in NVIDIA's layout, for policy.base_model_path."
    )


@dataclass(frozen=True, kw_only=True)
class ConversionOptions(PathOptions):
    """Options of `kata checkpoint convert`."""

    to: str = option(
        REQUIRED,
        "Files of the result: LeRobot's safetensors, dcp in shards, or both.",
        choices=FORMATS[1:],
    )
    out: str | None = option(
        None, "Folder of the result, which must not exist; null converts in place."
    )


@dataclass(frozen=True, kw_only=True)
class PushOptions(PathOptions):
    """Options of `kata checkpoint push`."""

    repo_id: str = option(REQUIRED, "Hub repository, <user>/<name>.", form=HUB_NAME)
    private: bool | None = option(
        None, "Make the repository private; null takes the account's default."
    )
