"""Wall-X's step: a sentence with its period, and the prompt that LeRobot writes in the policy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import DataError, PolicyError
from kata.processors.qwen.frames import fitted_size, resized
from kata.processors.qwen.prompts import (
    IMAGE,
    IMAGE_MARK,
    Grid,
    PromptTokens,
    in_batch,
    missing_images,
    prompt_tokens,
)
from kata.processors.steps import STEPS, Step
from kata.processors.tokenize import KEPT, read_tokenizer
from kata.spec import TASK, Batch

STATE_MARK, ACTION_MARK = "<|propri|>", "<|action|>"
NO_TASK = "Execute the robot action."
UNIT = 28
"""Pixels of which LeRobot makes frames multiples: the side of a published model's token."""

SIDE = 256
"""Pixels of the longer side to which frames are resized first."""

LEAST, MOST = 4 * UNIT**2, 16384 * UNIT**2
LONGEST = 768
"""Tokens of a prompt with its actions, at most."""

VIEWS = {
    "face_view": "front view",
    "left_wrist_view": "left wrist view",
    "right_wrist_view": "right wrist view",
    "move1_view": "move view",
    "move2_view": "move view",
    "wall_view": "wall view",
    "top_view": "top view",
}
"""Names of cameras in prompts, by the ends of their keys."""


def view_name(key: str) -> str:
    """Return the name that a camera has in prompts."""
    name = key.removeprefix("observation.images.")
    other = name.replace("_", " ") if "view" in name else f"{name} view"
    return VIEWS.get(name, other)


def first_size(size: Grid) -> Grid:
    """Return height and width of a frame whose longer side has SIDE pixels."""
    height, width = size
    if width > height:
        return int(SIDE * height / width), SIDE
    return SIDE, int(SIDE * width / height)


def final_size(size: Grid) -> Grid:
    """Return height and width in which the image encoder takes frames of a size."""
    return fitted_size(first_size(size), UNIT, LEAST, MOST)


def moved_points(text: str, before: Grid, after: Grid) -> str:
    """Return a text whose `<point>` marks name pixels of the resized frame.

    Args:
        text: with two or four numbers in a mark: x and y, or those of two corners.
        before: height and width of the frame.
        after: the same, resized.
    """

    def moved(match: re.Match[str]) -> str:
        found = [int(number) for number in re.findall(r"\d+", match[1])]
        if len(found) in (2, 4):
            for i, number in enumerate(found):
                axis = 1 - i % 2  # x is along the width
                scaled = round(number * (after[axis] / before[axis]))
                found[i] = max(0, min(scaled, after[axis] - 1))
        return f"<point>[{', '.join(map(str, found))}]</point>"

    return re.sub(r"<point>(.*?)</point>", moved, text)


@dataclass(frozen=True)
class WallXTask(Step):
    """A step that ends sentences with a period; with options it also writes prompts.

    LeRobot's files name the step without options, and its policy writes prompts and resizes frames
    itself. kata gives the options from the policy's config.

    Attributes:
        tokenizer_name: tokenizer of the model, a Hub name or a folder; empty for sentences alone.
        cameras: the policy's cameras, in their order.
        chunk_size: actions of a chunk, which the policy puts behind the prompt.
        token_side: pixels of a side of a token, which divides the sides of resized frames.
        writes_words: True if words follow the prompt, of which its last token, a new line, is the
            first then.
    """

    registry_name: ClassVar[str] = "wall_x_task_processor"

    tokenizer_name: str = ""
    cameras: tuple[str, ...] = ()
    chunk_size: int = 0
    token_side: int = UNIT
    writes_words: bool = False
    _known: dict[tuple[Any, ...], PromptTokens] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if not self.tokenizer_name:
            return
        vocabulary = read_tokenizer(self.tokenizer_name).get_vocab()
        lacking = [mark for mark in (IMAGE_MARK, STATE_MARK, ACTION_MARK) if mark not in vocabulary]
        if lacking:
            raise PolicyError(
                f"{self.tokenizer_name}: its tokenizer lacks {', '.join(lacking)}",
                rule="Wall-X marks images, states and actions by tokens of their own",
                remedy="name a folder of Wall-X, or its name on the Hub",
            )

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with sentences that end with a period, and with prompts if it has
        cameras.
        """
        tasks = batch.get(TASK)
        tasks = [tasks] if isinstance(tasks, str) else tasks
        if tasks is not None and all(isinstance(task, str) for task in tasks):
            tasks = [task if task.endswith(".") else f"{task}." for task in tasks]
            batch = {**batch, TASK: tasks}
        if not self.tokenizer_name:
            return batch
        cameras = [key for key in self.cameras if key in batch]
        if not cameras:
            raise DataError(
                f"a batch without any of {', '.join(self.cameras)}",
                rule="Wall-X sees at least one camera",
                remedy="give the policy the cameras that it was trained with",
            )
        return self._with_prompts(batch, cameras)

    def _with_prompts(self, batch: Batch, cameras: list[str]) -> Batch:
        """Return the batch with frames in the encoder's sizes, tokens, mask and places."""
        frames = {key: self.fitted(batch[key]) for key in cameras}
        before: Grid = (batch[cameras[-1]].shape[-2], batch[cameras[-1]].shape[-1])
        after: Grid = (frames[cameras[-1]].shape[-2], frames[cameras[-1]].shape[-1])
        grids = [self._grid(key, one) for key, one in frames.items()]
        size = len(batch[cameras[0]])
        tasks = batch.get(TASK) or [NO_TASK] * size
        rows: list[PromptTokens] = []
        for task, missing in zip(tasks, missing_images(batch, cameras, size), strict=True):
            views = [view_name(key) for key, gone in zip(cameras, missing, strict=True) if not gone]
            text = moved_points(self.prompt(task, views), before, after)
            rows.append(self._tokens(text, tuple(grids), missing))
        return {**batch, **frames, **in_batch(rows)}

    def _grid(self, key: str, frames: Tensor) -> Grid:
        """Return the rows and columns of a camera's tokens; DataError if frames do not fit."""
        height, width = frames.shape[-2:]
        if height % self.token_side or width % self.token_side:
            raise DataError(
                f"{key}: frames of {height}x{width} pixels after resizing, and tokens of "
                f"{self.token_side} pixels",
                rule="whole tokens along each side",
                remedy=f"a model whose tokens have {UNIT} pixels, or frames of other proportions",
            )
        return height // self.token_side, width // self.token_side

    @staticmethod
    def prompt(task: str, views: list[str]) -> str:
        """Return the text in front of a chunk's actions."""
        images = "".join(f" {view}: {IMAGE}" for view in views)
        return (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\nObservation:{images}\nInstruction: {task}\n"
            f"Predict the next action in robot action.\nProprioception: {STATE_MARK}\n<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    @staticmethod
    def fitted(frames: Tensor) -> Tensor:
        """Return frames (B, 3, H, W) in [0, 1] in the size that the encoder takes.

        They are resized twice and rounded each time, as LeRobot does it.
        """
        size = (frames.shape[-2], frames.shape[-1])
        levels = (frames.clamp(0, 1) * 255).to(torch.uint8)
        for wanted in (first_size(size), final_size(size)):
            levels = resized(levels, wanted, with_pillow=False)
        return levels.float() / 255.0

    def _tokens(
        self, text: str, grids: tuple[Grid, ...], missing: tuple[bool, ...]
    ) -> PromptTokens:
        """Return a prompt's tokens. A dataset has few sentences, and each is read once."""
        known = (text, grids, missing)
        if known not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            tokenizer = read_tokenizer(self.tokenizer_name)
            image, state = tokenizer.convert_tokens_to_ids([IMAGE_MARK, STATE_MARK])
            words: list[int] = tokenizer(text)["input_ids"]
            words = words[:-1] if self.writes_words else words
            last = len(words) - 1 - words[::-1].index(state)
            made = prompt_tokens(words, image, last, grids, missing)
            behind = 0 if self.writes_words else self.chunk_size
            self._refuse_long(int(made.seen.sum()) + behind, text)
            self._known[known] = made
        return self._known[known]

    @staticmethod
    def _refuse_long(length: int, text: str) -> None:
        if length > LONGEST:
            raise DataError(
                f"a prompt of {length} tokens with its actions: '{text[:200]}…'",
                rule=f"Wall-X reads at most {LONGEST}",
                remedy="fewer cameras, shorter sentences or shorter chunks",
            )

    def config(self) -> dict[str, Any]:
        """Return no options, as LeRobot writes the step."""
        return {}


STEPS[WallXTask.registry_name] = WallXTask
