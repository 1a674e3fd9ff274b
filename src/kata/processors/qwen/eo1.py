"""The two steps before EO-1: a prompt of images, state and task, and its tokens."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from kata.errors import DataError, PolicyError
from kata.processors.qwen.frames import fitted_size, levels_of, resized
from kata.processors.qwen.prompts import (
    IMAGE,
    IMAGE_MARK,
    Grid,
    PromptTokens,
    in_batch,
    missing_images,
    prompt_tokens,
)
from kata.processors.steps import STEPS, StateDict, Step
from kata.processors.tokenize import KEPT, read_tokenizer
from kata.spec import TASK, Batch, Feature, FeatureType

PROMPTS = "observation.language.prompts"
"""Key of the prompts, between the two steps."""

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
BEFORE = "<|im_start|>system\nYou are a helpful physical assistant.<|im_end|>\n<|im_start|>user\n"
"""Text in front of the images."""

STATE_MARKS = ("<|state_start|>", "<|state_pad|>", "<|state_end|>")
ACTION_MARKS = ("<|action_start|>", "<|action_pad|>", "<|action_end|>")
ADDED = (*ACTION_MARKS, *STATE_MARKS, "<|vla|>")
"""Tokens that EO-1 adds to Qwen's, in this order."""

UNIT = 28
"""Side of a token in pixels."""

LEAST, MOST = 64 * UNIT**2, 128 * UNIT**2
"""The fewest and most pixels of a frame that LeRobot gives by default."""


class Prompt(NamedTuple):
    """A sample's text, up to the mark where its actions begin, and its images.

    Attributes:
        text: with a mark for each image that the sample has.
        cameras: keys of the cameras, in the order of their images.
        missing: which of them the sample lacks.
    """

    text: str
    cameras: tuple[str, ...]
    missing: tuple[bool, ...]


@dataclass(frozen=True)
class Eo1Prompt(Step):
    """A step that writes EO-1's prompt for each sample; LeRobot's options.

    Attributes:
        input_features: the policy's inputs; images stand in the order of its cameras.
        chunk_size: actions of a chunk. The policy puts them behind the prompt.
    """

    registry_name: ClassVar[str] = "eo1_conversation_template_processor"

    input_features: dict[str, Feature]
    chunk_size: int

    def __call__(self, batch: Batch) -> Batch:
        """Add prompts; DataError without sentences, or without a camera."""
        tasks = batch.get(TASK)
        tasks = [tasks] if isinstance(tasks, str) else tasks
        cameras = [key for key in self.cameras if key in batch]
        if not cameras or not tasks or not all(isinstance(task, str) for task in tasks):
            raise DataError(
                f"{TASK}: {tasks}, cameras: {', '.join(cameras) or 'none'}",
                rule="this policy reads a task sentence and at least one camera in one prompt",
                remedy="give each sample its task and a camera that the policy knows",
            )
        state, end = "".join(STATE_MARKS), "<|vla|><|im_end|>\n<|im_start|>assistant\n"
        prompts: list[Prompt] = []
        for task, missing in zip(tasks, missing_images(batch, cameras, len(tasks)), strict=True):
            images = IMAGE * missing.count(False)
            text = f"{BEFORE}{images}{state}{task}{end}{ACTION_MARKS[0]}"
            prompts.append(Prompt(text, tuple(cameras), missing))
        return {**batch, PROMPTS: prompts}

    @property
    def cameras(self) -> list[str]:
        """Return the policy's cameras."""
        return [key for key, one in self.input_features.items() if one.type is FeatureType.VISUAL]

    def config(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        features = {
            key: {"type": one.type.value, "shape": list(one.shape)}
            for key, one in self.input_features.items()
        }
        return {"input_features": features, "chunk_size": self.chunk_size}

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> Eo1Prompt:
        """Return the step with a checkpoint's options, or with the config's features."""
        del state
        features: dict[str, Feature] = {}
        for key, one in config["input_features"].items():
            plain = isinstance(one, Feature)
            features[key] = one if plain else Feature(FeatureType(one["type"]), tuple(one["shape"]))
        return cls(features, int(config["chunk_size"]))


@functools.cache
def read_eo1_tokenizer(name: str) -> Any:
    """Return Qwen's tokenizer with the tokens that EO-1 adds; PolicyError if it cannot be had."""
    tokenizer = copy.deepcopy(read_tokenizer(name))
    tokenizer.add_tokens(list(ADDED), special_tokens=True)
    return tokenizer


@dataclass(frozen=True)
class Eo1Tokens(Step):
    """A step that turns prompts into tokens, and brings frames into the encoder's sizes.

    Images and states stand as IMAGE_TOKEN and STATE_TOKEN. LeRobot's options.

    Attributes:
        processor_name: Qwen's model, a Hub name or a folder.
        image_min_pixels: the fewest pixels of a resized frame.
        image_max_pixels: the most.
        use_fast_processor: resize with torchvision in place of Pillow.
        vocabulary: rows of the policy's table of tokens, in which the added ones must be; 0 if
            they need not be checked.
    """

    registry_name: ClassVar[str] = "eo1_qwen_processor"

    processor_name: str = QWEN
    image_min_pixels: int | None = LEAST
    image_max_pixels: int | None = MOST
    use_fast_processor: bool = False
    vocabulary: int = 0
    _known: dict[tuple[Any, ...], PromptTokens] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        needed = len(read_eo1_tokenizer(self.processor_name))
        if self.vocabulary and needed > self.vocabulary:
            raise PolicyError(
                f"{self.processor_name}: {needed} tokens with EO-1's, and a table of "
                f"{self.vocabulary}",
                rule="the table of tokens has a row for each",
                remedy="a model whose vocab_size is larger",
            )

    def __call__(self, batch: Batch) -> Batch:
        """Add tokens int64 (B, L), mask bool (B, L) and places int64 (B, 3, L) on the CPU.

        Frames become float (B, 3, h, w) in [0, 1] in the encoder's sizes.
        """
        batch = dict(batch)
        prompts: list[Prompt] = batch.pop(PROMPTS)
        grids: list[Grid] = []
        for key in prompts[0].cameras:
            batch[key] = self.fitted(batch[key])
            grids.append((batch[key].shape[-2] // UNIT, batch[key].shape[-1] // UNIT))
        rows = [self._tokens(prompt, tuple(grids)) for prompt in prompts]
        return {**batch, **in_batch(rows)}

    def config(self) -> dict[str, Any]:
        """Return the fields that LeRobot has."""
        return {
            "processor_name": self.processor_name,
            "image_min_pixels": self.image_min_pixels,
            "image_max_pixels": self.image_max_pixels,
            "use_fast_processor": self.use_fast_processor,
        }

    def fitted(self, frames: Tensor) -> Tensor:
        """Return frames (B, 3, H, W) in [0, 1] in the size that the encoder takes."""
        height, width = frames.shape[-2:]
        least, most = self.image_min_pixels or LEAST, self.image_max_pixels or MOST
        size = fitted_size((height, width), UNIT, least, most)
        pillow = not self.use_fast_processor
        return resized(levels_of(frames), size, with_pillow=pillow).float() / 255.0

    def _tokens(self, prompt: Prompt, grids: tuple[Grid, ...]) -> PromptTokens:
        """Return a prompt's tokens. A dataset has few sentences, and each is read once."""
        known = (prompt, grids)
        if known not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            self._known[known] = self._read(prompt, grids)
        return self._known[known]

    def _read(self, prompt: Prompt, grids: tuple[Grid, ...]) -> PromptTokens:
        tokenizer = read_eo1_tokenizer(self.processor_name)
        image, state = tokenizer.convert_tokens_to_ids([IMAGE_MARK, STATE_MARKS[1]])
        words: list[int] = tokenizer(prompt.text)["input_ids"]
        return prompt_tokens(words, image, words.index(state), grids, prompt.missing)


for step in (Eo1Prompt, Eo1Tokens):
    STEPS[step.registry_name] = step
