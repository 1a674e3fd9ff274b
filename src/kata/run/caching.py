"""The options of the frame cache. Torch-free."""

from __future__ import annotations

from kata.errors import ConfigError, did_you_mean
from kata.units import num_bytes

CACHES = ("none", "frames", "disk")


def check_cache(cache: str, folder: str | None, size: str | None) -> None:
    """Refuse impossible values of dataset.cache, cache_dir and cache_size.

    Raises: ConfigError.
    """
    if cache not in CACHES:
        raise ConfigError(
            f"dataset.cache={cache}", rule=f"one of: {', '.join(CACHES)}", remedy=did_you_mean(cache, CACHES)
        )
    if folder is not None and cache != "disk":
        raise ConfigError(
            f"dataset.cache_dir={folder} with dataset.cache={cache}",
            rule="a folder belongs to frames that are kept on a disk",
            remedy="add --dataset.cache=disk, or leave the folder out",
        )
    if size is not None and cache == "none":
        raise ConfigError(
            f"dataset.cache_size={size} with dataset.cache=none",
            rule="a size belongs to a cache",
            remedy="add --dataset.cache=frames or --dataset.cache=disk, or leave the size out",
        )
    if size is not None and not num_bytes(size) >= 1:
        raise ConfigError(
            f"dataset.cache_size={size}",
            rule="bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB",
            remedy="for example --dataset.cache_size=20GB",
        )
