"""Draws the board as its cameras see it: discs and bars with soft edges, in numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Point = NDArray[np.float64]

GROUND = (236, 234, 228)
ARM = (150, 152, 160)
GOAL = (0, 158, 72)
OTHER = (24, 88, 214)
TOOL = (214, 32, 40)

GOAL_RADIUS = 0.16
TOOL_RADIUS = 0.085
ARM_WIDTH = 0.05
_BASE = np.array([0.0, -1.1])
_LINK = 1.16  # two links of this length reach every corner of the board from the base


class SceneCamera:
    """A square view straight down on the board.

    Args:
        size: pixels of a side.
        half: half the side of what it sees, in board units.
    """

    def __init__(self, size: int, half: float) -> None:
        self.size, self._pixel = size, 2 * half / size
        self._ticks = ((np.arange(size) + 0.5) * self._pixel - half).astype(np.float32)

    def look(self, middle: Point, tool: Point, goal: Point, other: Point | None = None) -> Picture:
        """The picture around `middle`, uint8 (size, size, 3); x runs to the right, y upwards.

        `goal` is the green target, and `other` the blue one, if there is one.
        """
        canvas = np.empty((self.size, self.size, 3), np.float32)
        canvas[:] = GROUND
        elbow = _elbow(tool)
        for start, end in ((_BASE, elbow), (elbow, tool)):
            self._bar(canvas, start - middle, end - middle)
        if other is not None:
            self._disc(canvas, other - middle, GOAL_RADIUS, OTHER)
        self._disc(canvas, goal - middle, GOAL_RADIUS, GOAL)
        self._disc(canvas, tool - middle, TOOL_RADIUS, TOOL)
        return canvas[::-1].astype(np.uint8)

    def _disc(
        self, canvas: NDArray[np.float32], at: Point, radius: float, colour: tuple[int, int, int]
    ) -> None:
        columns, rows = (self._near(at[axis] - radius, at[axis] + radius) for axis in (0, 1))
        dx, dy = self._ticks[columns] - np.float32(at[0]), self._ticks[rows] - np.float32(at[1])
        far = np.sqrt(dx[None, :] ** 2 + dy[:, None] ** 2)
        self._paint(canvas[rows, columns], far - np.float32(radius), colour)

    def _bar(self, canvas: NDArray[np.float32], start: Point, end: Point) -> None:
        low, high = np.minimum(start, end) - ARM_WIDTH, np.maximum(start, end) + ARM_WIDTH
        columns, rows = (self._near(low[axis], high[axis]) for axis in (0, 1))
        along = end - start
        ux, uy = (float(part) for part in along / (along @ along))
        x = self._ticks[columns][None, :] - np.float32(start[0])
        y = self._ticks[rows][:, None] - np.float32(start[1])
        place = np.clip(x * np.float32(ux) + y * np.float32(uy), 0, 1)
        far = np.sqrt(
            (x - place * np.float32(along[0])) ** 2 + (y - place * np.float32(along[1])) ** 2
        )
        self._paint(canvas[rows, columns], far - np.float32(ARM_WIDTH / 2), ARM)

    def _near(self, low: float, high: float) -> slice:
        """The pixels of one axis between two places, with one to spare."""
        first, last = np.searchsorted(self._ticks, (low - self._pixel, high + self._pixel))
        return slice(int(first), int(last))

    def _paint(
        self, part: NDArray[np.float32], outside: NDArray[np.float32], colour: tuple[int, int, int]
    ) -> None:
        """Lay a colour over a part of the canvas; `outside` is the distance to the edge,
        negative within.
        """
        cover = np.clip(np.float32(0.5) - outside / np.float32(self._pixel), 0, 1)[..., None]
        part += cover * (np.array(colour, np.float32) - part)


def _elbow(tool: Point) -> Point:
    """Return the position of the elbow for a tool position."""
    reach = tool - _BASE
    length = float(np.hypot(*reach))
    height = np.sqrt(max(_LINK**2 - length**2 / 4, 0.0))
    across = np.array([-reach[1], reach[0]]) / length
    return _BASE + reach / 2 + across * height
