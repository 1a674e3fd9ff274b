"""The manifest of a checkpoint: size and hash of every file, written last. Torch-free.

A folder is complete if its manifest holds. Checkpoints of LeRobot and of older versions have none.
They are checked by the files that must exist and by the sizes that their headers give.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kata import __version__
from kata.files import fsync
from kata.run.peft import ADAPTER
from kata.units import count_text

MANIFEST = "manifest.json"
PRETRAINED = "pretrained_model"
PRETRAINED_EMA = "pretrained_model_ema"
TRAINING = "training_state"
MODEL, SHARDS = "model.safetensors", "sharded_state"
TRAINED = "trained.safetensors"
"""Weights beside those of a base that the checkpoint refers to."""
_LIBRARIES = ("torch", "safetensors")
_REQUIRED = (f"{PRETRAINED}/config.json",)
_WEIGHTS = (MODEL, TRAINED, ADAPTER)


def write_manifest(folder: Path, step: int) -> int:
    """Hash every file below `folder`, flush each to the disk, and write the manifest; returns the
    bytes of them all.

    What was written is read back, so that the hash is that of the file and not of what it should
    have been.
    """
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        fsync(path)
        files[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }
    versions = {
        "kata": __version__,
        **{name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
    }
    content = {"format": 1, "step": step, "versions": versions, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for path in (folder / MANIFEST, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        fsync(path)
    return sum(entry["bytes"] for entry in files.values())


def damage(folder: Path, *, hashes: bool = True) -> list[str]:
    """Return the faults of a checkpoint, a phrase per file; empty for a complete one.

    hashes: False compares sizes only, which finds truncated files but not changed ones.
    """
    if not has_manifest(folder):
        return _damage_without_manifest(folder)
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {
            str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{MANIFEST}: cannot be read ({type(error).__name__})"]
    found = (_difference(folder, name, *entry, hashes=hashes) for name, entry in expected.items())
    return [problem for problem in found if problem]


def step_of(folder: Path) -> int:
    """Return how many steps a checkpoint has done. Raises: OSError, ValueError."""
    path = folder / TRAINING / "training_step.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    step = content.get("step") if isinstance(content, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ValueError(f"training_step.json: step is {step!r}, and must be a whole number >= 0")
    return step


def has_manifest(folder: Path) -> bool:
    """Return True if every file can be checked against a manifest."""
    return (folder / MANIFEST).is_file()


def _difference(folder: Path, name: str, size: int, digest: str, *, hashes: bool) -> str:
    path = folder / name
    if not path.is_file():
        return f"{name}: absent"
    if path.stat().st_size != size:
        return f"{name}: {count_text(path.stat().st_size)} of {count_text(size)} bytes"
    try:
        return f"{name}: content changed (sha256)" if hashes and _sha256(path) != digest else ""
    except OSError as error:
        return f"{name}: cannot be read ({error.strerror})"


def _damage_without_manifest(folder: Path) -> list[str]:
    required = [*_REQUIRED, *([f"{TRAINING}/training_step.json"] if folder.name.isdigit() else [])]
    problems = [f"{name}: absent" for name in required if not (folder / name).is_file()]
    if not any((folder / PRETRAINED / name).is_file() for name in _WEIGHTS):
        problems.append(f"{PRETRAINED}/{MODEL}: absent")
    for path in sorted(folder.rglob("*")):
        broken = {".safetensors": _cut_off, ".json": _no_json}.get(path.suffix)
        if broken is not None and broken(path):
            problems.append(
                f"{path.relative_to(folder).as_posix()}: cut off or not {path.suffix[1:]}"
            )
    return problems


def _cut_off(path: Path) -> bool:
    """Return True if the length of a safetensors file differs from its header."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                return True
            header = json.loads(file.read(length))
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
        return path.stat().st_size != 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def _no_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
