"""Memory that a training process frees and needs again in the next step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

# glibc's numbers of what mallopt() sets (malloc.h), and its own bounds.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_NEVER = -1
_MAPPINGS = 65_536
_LARGEST_THRESHOLD = 32 * 2**20


@contextmanager
def freed_memory_kept(device: torch.device) -> Generator[None]:
    """Keep memory that is freed inside for the tensors to come, where a CPU computes.

    By default glibc maps each tensor of more than 32 MB by itself and gives it back when it is
    freed: the system clears its pages again in every step. Afterwards freed memory is given back,
    and tensors are mapped by themselves again. Nothing happens with other C libraries.

    Args:
        device: that computes. Memory of a GPU has an allocator of torch's.
    """
    set_option = _glibc("mallopt") if device.type == "cpu" else None
    if set_option is None:
        yield
        return
    set_option(_MMAP_MAX, 0)
    set_option(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        set_option(_MMAP_MAX, _MAPPINGS)
        # What glibc arrives at by itself where large memory is freed; its adaptation ended above.
        set_option(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        set_option(_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)
        if (trim := _glibc("malloc_trim")) is not None:
            trim(0)


def _glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc, or None where there is none."""
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version
        found: Callable[..., int] = getattr(library, name)
    except (AttributeError, OSError, TypeError):
        return None
    return found
