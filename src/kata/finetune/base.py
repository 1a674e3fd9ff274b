"""The base of a fine-tuned policy: where its weights are, and which they are."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from kata.errors import CheckpointError, PolicyError
from kata.files import write_json
from kata.policies.base import Reference
from kata.run import policy_folder
from kata.run.peft import ADAPTER, ADAPTER_CONFIG, read_adapter_config

MODEL, TRAINED = "model.safetensors", "trained.safetensors"
BASE = "base.json"
"""The files of weights: all of them, or those that were trained beside the base of `base.json`."""


def reference_to(path: str, revision: str | None) -> Reference:
    """Return a reference to a checkpoint by folder or Hub name, with the digest of its weights."""
    folder = policy_folder(path, revision)
    is_local = Path(path).expanduser().exists()
    stored = str(folder.resolve()) if is_local else path
    return Reference(stored, None if is_local else revision, weights_digest(folder))


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a checkpoint's weights, in hexadecimal digits.

    Raises:
        PolicyError: the folder holds no weights.
    """
    names = (MODEL, TRAINED, ADAPTER, BASE)
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise PolicyError(
            f"{folder}: holds neither {MODEL} nor {ADAPTER}",
            rule="a base holds its weights",
            remedy="give the `pretrained_model` folder of a checkpoint",
        )
    digests: list[str] = []
    for file in found:
        with file.open("rb") as opened:
            digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def write_reference(folder: Path, reference: Reference) -> None:
    """Write the reference beside weights that were trained on its checkpoint."""
    plain = dataclasses.asdict(reference)
    del plain["names"]
    write_json(folder / BASE, plain)


def read_reference(folder: Path) -> Reference | None:
    """Return the base of a checkpoint, or None for one that holds all of its weights.

    The digest is empty for an adapter that another program has written.
    """
    if (folder / BASE).is_file():
        try:
            return Reference(**json.loads((folder / BASE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{folder / BASE}: cannot be read ({error})",
                rule="it names the base of the weights beside it",
                remedy="copy it again, or name another checkpoint",
            ) from error
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    found = read_adapter_config(folder)
    base = found.get("base_model_name_or_path")
    if not base:
        raise PolicyError(
            f"{folder / ADAPTER_CONFIG}: names no base (base_model_name_or_path)",
            rule="an adapter adds to the weights of its base",
            remedy="write the base's folder or Hub name there",
        )
    return Reference(str(base), found.get("revision"), "")


def refuse_missing_base(path: str, revision: str | None) -> None:
    """Raise CheckpointError unless the base of a run that continues is where it was.

    Args:
        path: `policy.pretrained_path` of the run.
        revision: of the Hub's repository, or None.
    """
    try:
        policy_folder(path, revision)
    except PolicyError as error:
        raise CheckpointError(
            f"resume: the base of this run was {path}, and no checkpoint is there now",
            rule="checkpoints of this run hold what is trained, and the base the rest",
            remedy="put the base back, or name its new place: --policy.pretrained_path=<folder or "
            "Hub name>",
        ) from error


def base_folder(reference: Reference, wanted_by: Path) -> Path:
    """Return the folder of a base.

    Args:
        reference: names the base.
        wanted_by: the checkpoint that refers to it, for messages.

    Raises:
        CheckpointError: it is not there, or has other weights than those that were referred to.
    """
    try:
        folder = policy_folder(reference.path, reference.revision)
    except PolicyError as error:
        raise CheckpointError(
            f"{wanted_by}: holds what was trained, and its base {reference.path} is not there",
            rule="weights that stay as in the base are read from the base",
            remedy="put the base back, or a link to it; or use a whole copy, which "
            "`kata checkpoint export` makes where the base is",
        ) from error
    if reference.sha256 and weights_digest(folder) != reference.sha256:
        raise CheckpointError(
            f"{wanted_by}: was trained on other weights than those in {folder}",
            rule=f"its base has the SHA-256 {reference.sha256[:12]}…",
            remedy="put the weights back that it was trained on",
        )
    return folder
