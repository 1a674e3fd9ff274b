"""Tensors in safetensors files: written whole or not at all, read without running anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kata.errors import CheckpointError


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name; they are copied to the CPU and made contiguous. The file appears whole or not at all."""
    ready = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    partial = file.with_name(file.name + ".partial")
    partial.touch()
    mode = partial.stat().st_mode  # save_file would leave the file readable by its owner alone
    save_file(ready, partial, metadata={"format": "pt"})
    partial.chmod(mode)
    with partial.open("rb+") as written:
        os.fsync(written.fileno())
    os.replace(partial, file)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU; CheckpointError where there are none to read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file}: {error}",
            rule="a whole safetensors file",
            remedy="name a checkpoint folder that holds it; copy it again if it is damaged",
        ) from error
