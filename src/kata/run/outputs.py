"""The places that a run writes to, checked before anything is opened: its folder, its Hub name.

Torch-free.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path

from kata.errors import CheckpointError, ConfigError
from kata.run.config import Run

LOCK = ".lock"
"""File in a run folder that belongs to the process at work there."""


def check_outputs(run: Run) -> None:
    """Refuse a folder that cannot be written, and a name that the Hub would refuse.

    Raises: CheckpointError for the folder, ConfigError for the name.
    """
    check_repo_id(run)
    run_folder(run)


def run_folder(run: Run) -> Path:
    """Return the folder that the run writes to, which need not exist.

    Raises: CheckpointError for a folder that exists already or cannot be made.
    """
    now = datetime.datetime.now()
    default = f"outputs/train/{now:%Y-%m-%d}/{now:%H-%M-%S}_{run.name}"
    folder = Path(run.output_dir or default).expanduser()
    refuse_used_folder(folder, run)
    above = folder
    while not os.path.exists(above):
        above = above.parent
    try:
        # Permissions do not tell: a file system may be read-only, or hold no files at all.
        Path(tempfile.mkdtemp(prefix=".kata-", dir=above)).rmdir()
    except OSError as error:
        raise CheckpointError(
            f"output_dir={folder}: cannot be written ({error.strerror})",
            rule=f"{above} must be a folder that you may write to",
            remedy="choose another --output_dir, or change its permissions",
        ) from error
    return folder


def refuse_used_folder(folder: Path, run: Run) -> None:
    """Refuse a folder with files for a new run.

    A run looks before anything is opened, and once more when the folder is its own: another run may
    have begun in between.
    """
    if run.resume or not os.path.exists(folder):
        return
    try:
        is_taken = not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"output_dir={folder}: cannot be read ({error.strerror})",
            rule="a run writes into its own folder",
            remedy="choose another --output_dir, or change its permissions",
        ) from error
    if is_taken:
        raise CheckpointError(
            f"output_dir={folder}: exists already",
            rule="a new run gets its own folder",
            remedy="add --resume=true to continue the run in it, or choose another --output_dir",
        )


def check_repo_id(run: Run) -> None:
    """Refuse a name that the Hub would refuse for the policy. Raises: ConfigError."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    name = run.policy.repo_id
    if not run.policy.push_to_hub or not name:
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(
            f"policy.repo_id={name}",
            rule="a name on the Hub: <user>/<name> of letters, digits, '-', '_' and '.'",
            remedy="correct it, or --policy.push_to_hub=false",
        ) from error
