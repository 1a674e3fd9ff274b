"""How frames lie in batches: as recorded, resized, or as the planes that a decoder gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kata.spec import Colours, Column

Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class Form:
    """What becomes of frames on their way into a batch.

    size: (height, width) that they are resized to; None leaves them. colours: of the cameras whose frames stay planes
    of 4:2:0, half of RGB, for the device to convert; the others are RGB.
    """

    size: Size | None = None
    colours: Mapping[str, Colours] = field(default_factory=dict[str, Colours])

    def shape(self, key: str, column: Column) -> tuple[int, ...]:
        """Of a camera's frames: (H, W, C), or (H * 3 / 2, W, 1) for planes.

        These are the lines of Y, then those of U and of V, two to a line.
        """
        height, width, channels = column.shape
        if key in self.colours:
            return (height * 3 // 2, width, 1)
        return column.shape if self.size is None else (*self.size, channels)

    def under(self, names: Mapping[str, str]) -> Form:
        """The same with cameras named anew; those without another name are left out."""
        return Form(self.size, {names[key]: colours for key, colours in self.colours.items() if key in names})


RECORDED = Form()
"""RGB of the size that was recorded."""
