"""The step that makes the prompt of Qwen3-VL: images in their final size, and tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import PolicyError
from kata.processors.groot.images import (
    Geometry,
    before_crop,
    bicubic,
    crop_size,
    fitting_size,
    for_model,
    shortest_edge,
)
from kata.processors.pretrained import require_files, unreadable
from kata.processors.steps import STEPS, StateDict, Step
from kata.processors.tokenize import DOWNLOADS, KEPT, read_tokenizer
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, TASK, VIEW, Batch

IMAGE = "<|image_pad|>"
PREPROCESSOR = "preprocessor_config.json"

PIXELS = (65_536, 16_777_216)
"""Fewest and most pixels of an image in Qwen3-VL's published processor."""


@dataclass(frozen=True)
class ImageRules:
    """Rules of Qwen's processor for images.

    Attributes:
        patch: side of a patch in pixels.
        merge: patches along a side that become one token.
        least: fewest pixels of an image.
        most: most pixels of an image.
        mean: subtracted from colors in [0, 1].
        std: what the rest is divided by.
    """

    patch: int = 16
    merge: int = 2
    least: int = PIXELS[0]
    most: int = PIXELS[1]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @property
    def factor(self) -> int:
        """Return the side in pixels of a token."""
        return self.patch * self.merge

    def fitted(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of images in the end."""
        return fitting_size(size, self.factor, self.least, self.most)


@functools.cache
def image_rules(name: str) -> ImageRules:
    """Return what a folder's preprocessor_config.json says; for a Hub name what is published.

    Raises:
        PolicyError: the folder has no such file, or it is damaged.
    """
    folder = Path(name)
    if not folder.is_dir():
        return ImageRules()
    require_files(name, "rules for images", [(PREPROCESSOR,)])
    try:
        found: dict[str, Any] = json.loads((folder / PREPROCESSOR).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise unreadable(name, PREPROCESSOR, error) from error
    size: dict[str, int] = found.get("size") or {}
    return ImageRules(
        patch=found.get("patch_size", 16),
        merge=found.get("merge_size", 2),
        least=found.get("min_pixels", size.get("shortest_edge", PIXELS[0])),
        most=found.get("max_pixels", size.get("longest_edge", PIXELS[1])),
        mean=tuple(found.get("image_mean", (0.5, 0.5, 0.5))),
        std=tuple(found.get("image_std", (0.5, 0.5, 0.5))),
    )


@dataclass
class EncodePrompt(Step):
    """A step with LeRobot's options; fields are those of its JSON."""

    registry_name: ClassVar[str] = "groot_n1_7_vlm_encode_v1"

    model_name: str = "nvidia/Cosmos-Reason2-2B"
    image_crop_size: list[int] | None = None
    image_target_size: list[int] | None = None
    shortest_image_edge: int | None = None
    crop_fraction: float | None = None
    use_albumentations: bool = False
    letter_box_transform: bool = False
    device: str | None = None
    _known: dict[tuple[str, tuple[int, ...]], list[int]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self._tokenizer = read_tokenizer(self.model_name)
        self.rules = image_rules(self.model_name)
        if not self._tokenizer.chat_template:
            raise PolicyError(
                f"{self.model_name}: its tokenizer has no chat template",
                rule=f"the files of a Qwen3-VL: {', '.join(DOWNLOADS)}, chat_template.jinja",
                remedy="copy chat_template.jinja into the folder",
            )

    @property
    def geometry(self) -> Geometry:
        """Return the options of images."""
        return Geometry(**{name: vars(self)[name] for name in Geometry.__dataclass_fields__})

    def __call__(self, batch: Batch) -> Batch:
        """Add tokens int64 (B, L), padded on the right, with a mask; resize the images."""
        tasks: list[str] = batch[TASK]
        names = [key for key in batch if key.startswith(VIEW) and isinstance(batch[key], Tensor)]
        views = sorted((key for key in names if key[len(VIEW) :].isdigit()), key=_number)
        images = {key: self._resized(batch[key]) for key in views}
        counts: list[int] = []
        for image in images.values():
            high, wide = self._final_size(image)
            counts.append(high * wide // self.rules.factor**2)
        rows = [self._ids(task, tuple(counts)) for task in tasks]
        length = max(len(row) for row in rows)
        tokens = torch.full((len(rows), length), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros(tokens.shape, dtype=torch.bool)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = True
        return {**batch, **images, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask}

    def _resized(self, frames: Tensor) -> Tensor:
        """Return uint8 frames (B, 3, H, W) in their final size, or before albumentations' crop."""
        if self.use_albumentations:
            return before_crop(frames, self.geometry)
        frames = for_model(frames, self.geometry)
        size = self.rules.fitted((frames.shape[-2], frames.shape[-1]))
        return frames if frames.shape[-2:] == size else bicubic(frames, size)

    def _final_size(self, frames: Tensor) -> tuple[int, int]:
        height, width = frames.shape[-2:]
        if self.use_albumentations:
            blank = torch.empty(1, *crop_size((height, width), self.geometry), dtype=torch.uint8)
            height, width = shortest_edge(blank, self.geometry.edge).shape[-2:]
        return self.rules.fitted((height, width))

    def length(self, task: str, cameras: int) -> int:
        """Return the number of tokens of a prompt, those of images left out."""
        return len(self._ids(task, (0,) * cameras))

    def _ids(self, task: str, counts: tuple[int, ...]) -> list[int]:
        """Return a prompt's tokens, `counts` for its images; each sentence is read once."""
        if (task, counts) not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            content = [*({"type": "image"} for _ in counts), {"type": "text", "text": task}]
            text: str = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=False
            )
            before, *rest = text.split(IMAGE)
            if len(rest) != len(counts):
                raise PolicyError(
                    f"{self.model_name}: its chat template has {len(rest)} marks for "
                    f"{len(counts)} images",
                    rule=f"one {IMAGE} for each image",
                    remedy="the chat template of Qwen3-VL; a sentence must not hold the mark",
                )
            for count, part in zip(counts, rest, strict=True):
                before += IMAGE * count + part
            self._known[task, counts] = self._tokenizer(before)["input_ids"]
        return self._known[task, counts]

    def config(self) -> dict[str, Any]:
        """Return the fields; `device` without an index."""
        names = [each.name for each in fields(self) if each.name != "_known"]
        plain = {name: vars(self)[name] for name in names}
        return {**plain, "device": (self.device or "").partition(":")[0] or None}

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> EncodePrompt:
        """Return the step with a checkpoint's JSON."""
        del state
        return cls(**config)


def _number(key: str) -> int:
    return int(key[len(VIEW) :])


STEPS[EncodePrompt.registry_name] = EncodePrompt
