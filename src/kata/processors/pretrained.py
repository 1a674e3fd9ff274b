"""Checks of pretrained models and tokenizers, named by Hub name or local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kata.errors import PolicyError


class PretrainedError(PolicyError):
    """A pretrained model or tokenizer is not where its name says, or lacks files."""


def require_files(name: str, what: str, alternatives: Sequence[tuple[str, ...]]) -> None:
    """Raise PolicyError if `name` is a local folder that does not exist or lacks files.

    Args:
        name: a Hub name, which passes, or a path: absolute, beginning with '.' or '~', or existing.
        what: the thing to read from there, for the message.
        alternatives: sets of file names, one of which must be there as a whole.
    """
    folder = Path(name)
    if not (name.startswith(("/", ".", "~")) or name.count("/") > 1 or folder.exists()):
        return
    wanted = "; or ".join(" and ".join(names) for names in alternatives)
    if not folder.is_dir():
        raise PretrainedError(
            f"{name}: no such folder",
            rule=f"{what}: a folder with {wanted}",
            remedy="correct the path",
        )
    missing: list[list[str]] = []
    for names in alternatives:
        missing.append([file for file in names if not (folder / file).is_file()])
    if all(missing):
        lacks = "; or ".join(" and ".join(names) for names in missing)
        raise PretrainedError(
            f"{name}: no {lacks}",
            rule=f"{what}: a folder with {wanted}",
            remedy="copy the files from the model's page on the Hub into the folder",
        )


def model_folder(name: str, what: str, files: Sequence[str]) -> Path:
    """Return the folder of a model, fetched from the Hub where the name is none of a folder.

    Args:
        name: a Hub name or a folder.
        what: the thing to read from there, for the message.
        files: patterns of the files that are fetched, such as '*.safetensors'.

    Raises:
        PolicyError: the Hub, or its local cache without a network, does not have it.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    # Here, since machines that only train have models' folders and may lack the Hub's packages.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        asked = " ".join(f"--include '{pattern}'" for pattern in files)
        raise unreadable(name, what, error, [asked]) from error


def unreadable(
    name: str, what: str, error: Exception, files: Sequence[str] = ()
) -> PretrainedError:
    """Return the error for a name that transformers cannot load.

    Args:
        name: a Hub name or a folder.
        what: the thing to read from there.
        error: transformers' or the Hub's error, of which the first line is shown.
        files: those to fetch for machines without a network, as arguments of `hf download`.
    """
    remedy = "give a local folder with the model's files"
    if files and not Path(name).exists():
        remedy = (
            f"with a network, and after accepting a license at https://huggingface.co/{name}: "
            f"hf download {name} {' '.join(files)} --local-dir <folder>; then name that folder in "
            f"place of {name}"
        )
    return PretrainedError(
        f"{name}: {what} cannot be loaded ({str(error).strip().splitlines()[0]})",
        rule="a name on the Hub, with a network or in the local cache, or a folder",
        remedy=remedy,
    )
