"""Tensors in safetensors files, written atomically, and read without executing anything."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from kata.errors import CheckpointError


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, copied to the CPU and made contiguous. The write is atomic.

    Raises OSError where the disk refuses.
    """
    ready = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    partial = file.with_name(file.name + ".partial")
    partial.touch()
    mode = partial.stat().st_mode  # save_file would leave the file readable by its owner alone
    try:
        save_file(ready, partial, metadata={"format": "pt"})
    except SafetensorError as error:
        raise _as_os_error(error, partial) from error
    partial.chmod(mode)
    with partial.open("rb+") as written:
        os.fsync(written.fileno())
    os.replace(partial, file)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, on the CPU; CheckpointError if it cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error


def stored_dtypes(file: Path) -> dict[str, torch.dtype]:
    """Return the dtype of each tensor of a file, of which only the header is read.

    Raises:
        CheckpointError: the file cannot be read.
    """
    found: dict[str, torch.dtype] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                # An empty slice has the dtype, and reads no number.
                found[name] = opened.get_slice(name)[:0].dtype
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error
    return found


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{file}: {error}",
        rule="a whole safetensors file",
        remedy="name a checkpoint folder that holds it; copy it again if it is damaged",
    )


def _as_os_error(error: SafetensorError, file: Path) -> OSError:
    """Return the OSError whose number safetensors only prints: '(os error 28)'."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]) if number else errno.EIO, str(error), str(file))
