"""The interface of a camera: frames by file and number, from videos or from images in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from kata.data.arrays import Int64, Pixels
from kata.data.format.episode_table import Span
from kata.data.parquet.pages import SideBySide
from kata.data.storage.far_files import ByteRange
from kata.data.video.color import Planes
from kata.errors import DataError

SAME_SHAPE = "the shape in meta/info.json equals that of the frames"

Picture: TypeAlias = Planes | Pixels
"""A decoded frame as its decoder returns it."""


class Camera(Protocol):
    """A camera of a dataset: the interface that the scheduler decodes through.

    Attributes:
        span: position of each episode in the camera's files; `file` and `number` below refer to it.
        shape: (H, W, C) of its frames in batches.
    """

    span: Span
    shape: tuple[int, ...]

    def files(self) -> Int64:
        """Return the numbers of the files in use. They are prepared before anything is decoded."""
        ...

    def prepare(self, file: int) -> None:
        """Index one file. Any thread may call this, any number of times."""
        ...

    def groups(self, file: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Return the first frame and the end of the GOP of each frame, both (n,)."""
        ...

    def byte_ranges(self, file: int, numbers: Int64) -> list[ByteRange]:
        """Return the bytes of a far file that `decode` will read for these frames.

        Args:
            file: number of the file.
            numbers: (n,) of the frames in the file, ascending.

        Returns:
            Whole GOPs, and nothing where the file is on this machine.
        """
        ...

    def searches(self, file: int, numbers: Int64) -> list[Callable[[SideBySide], None]]:
        """Return what finds the bytes of these frames in a far file, where that is not known yet.

        Each is called with a map that makes its requests side by side, and may wait for them.

        Args:
            file: number of the file.
            numbers: (n,) of the frames in the file, ascending.
        """
        ...

    def neighbours(self, file: int, ranges: Sequence[ByteRange]) -> Int64:
        """Return the GOPs of a far file that may be fetched along with some that are fetched.

        Args:
            file: number of the file.
            ranges: what is fetched, as `byte_ranges` returned it.

        Returns:
            (m, 2) first frame and end of each, ascending, those of `ranges` included.
        """
        ...

    def far_bytes(self) -> dict[str, int]:
        """Return the bytes of each far file that may be read, as far as they are known.

        Files that are not prepared count whole.
        """
        ...

    def decode(self, file: int, numbers: Int64, rows: Int64) -> Iterator[tuple[int, Picture]]:
        """Decode frames of one GOP, and yield (place in `numbers`, picture).

        Args:
            file: number of the file.
            numbers: (n,) of the frames in the file, ascending.
            rows: (n,) of the frames in the dataset, for errors.
        """
        ...

    def write_frame(self, picture: Picture, out: Pixels) -> None:
        """Write a picture of this camera into `out` (H, W, C)."""
        ...

    def held_bytes(self, picture: Picture) -> int:
        """Return the bytes that `hold` needs for a picture, at most H * W * C."""
        ...

    def hold(self, picture: Picture, memory: Pixels) -> Picture:
        """Copy a picture from its decoder's memory into `memory` (held_bytes,), and return the
        copy.
        """
        ...


def shape_mismatch(
    key: str, declared: tuple[int, ...], found: tuple[int, ...], where: str
) -> DataError:
    """Return the error for frames of another shape than the dataset declares."""
    return DataError(
        f"camera '{key}': the dataset says (H, W, C) = {declared}, {where} has {found}",
        rule=SAME_SHAPE,
        remedy="repair the shape in meta/info.json, or download the dataset again",
    )
