"""The cases of a benchmark: the windows of known policies, and the ways of reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kata.errors import DataError
from kata.spec import ACTION, STATE, Windows

if TYPE_CHECKING:
    from kata.data import Dataset

PATTERNS = ("act", "diffusion", "sarm", "single")
WAYS = ("full", "clips", "cache")
"""full: one random order over all frames. clips: from a pool of clips, each frame decoded about
once. cache: the random order from decoded frames in memory, measured once all are there.
"""


class Case(NamedTuple):
    """A dataset, by its folder below the benchmark's root, and a pattern."""

    folder: str
    pattern: str

    def __str__(self) -> str:
        return self.pattern if self.folder == "." else f"{self.folder}:{self.pattern}"


def windows_of(pattern: str, dataset: Dataset) -> tuple[Windows, tuple[str, ...]]:
    """Return the windows in frames, and the columns that are read.

    act: one frame of every camera, 100 actions. diffusion: two frames of every camera and two
        states, 16 actions.
    sarm: 8 frames of the first camera, one second apart, and the action. single: one frame of every
        camera.

    Raises:
        DataError: The dataset has no camera.
    """
    cameras, fps = list(dataset.cameras), dataset.fps
    if not cameras:
        raise DataError(
            f"{dataset.repo_id} has no camera",
            rule="reading frames is measured",
            remedy="take another dataset",
        )
    others = tuple(key for key in dataset.columns if key not in cameras)
    if pattern == "act":
        return {ACTION: tuple(range(100))}, (*cameras, *others)
    if pattern == "diffusion":
        two = dict.fromkeys([*cameras, *(key for key in (STATE,) if key in others)], (-1, 0))
        return {**two, ACTION: tuple(range(-1, 15))}, (*cameras, *others)
    if pattern == "sarm":
        return {cameras[0]: tuple(range(-7 * fps, 1, fps)), ACTION: (0,)}, (cameras[0], *others)
    return {}, (*cameras, *others)
