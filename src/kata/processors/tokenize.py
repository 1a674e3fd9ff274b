"""The step that turns task sentences into tokens."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from kata.errors import DataError, PolicyError
from kata.processors.pretrained import require_files, unreadable
from kata.processors.steps import STEPS, Step
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, TASK, Batch

_log = logging.getLogger(__name__)

DOWNLOADS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
KEPT = 4096
"""Sentences whose tokens are kept."""

FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))


@functools.cache
def read_tokenizer(name: str) -> Any:
    """Return the tokenizer of a folder or a Hub name; PolicyError if it cannot be had."""
    require_files(name, "a tokenizer", FILES)
    from transformers import AutoTokenizer  # slow to import, and needed by few policies

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise unreadable(name, "its tokenizer", error, DOWNLOADS) from error


def tokenizer_digest(name: str) -> str:
    """Return a digest of all that decides the tokens of a tokenizer's sentences."""
    tokenizer = read_tokenizer(name)
    words = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Tokenize(Step):
    """A step that adds tokens of the task sentences, padded to one length; LeRobot's options.

    The constructor reads the tokenizer, and raises PolicyError if its folder or a file is absent.
    """

    registry_name: ClassVar[str] = "tokenizer_processor"
    tokenizer_name: str
    max_length: int = 512
    task_key: str = TASK
    padding_side: str = "right"
    padding: str = "max_length"
    truncation: bool = True
    _tokenizer: Any = field(init=False, repr=False, compare=False)
    _known: dict[str, list[int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _told: list[str] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tokenizer", read_tokenizer(self.tokenizer_name))

    def __call__(self, batch: Batch) -> Batch:
        """Add tokens int64 (B, L) and mask bool (B, L) on the CPU; DataError without sentences."""
        tasks = batch.get(self.task_key)
        if isinstance(tasks, str):
            tasks = [tasks]
        if not tasks or not all(isinstance(task, str) for task in tasks):
            raise DataError(
                f"{self.task_key}: {tasks}",
                rule="this policy is told in a sentence what to do",
                remedy="give each sample its task",
            )
        rows = [self._ids(task) for task in tasks]
        length = max(len(row) for row in rows)
        if self.padding == "max_length":
            length = max(length, self.max_length)
        tokens = torch.full((len(rows), length), self._pad_id())
        mask = torch.zeros(tokens.shape, dtype=torch.bool)
        for i, row in enumerate(rows):
            start = length - len(row) if self.padding_side == "left" else 0
            tokens[i, start : start + len(row)] = torch.tensor(row)
            mask[i, start : start + len(row)] = True
        return {**batch, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask}

    def length(self, task: str) -> int:
        """Return the number of a sentence's tokens if none are cut off."""
        return len(self._tokenizer(task)["input_ids"])

    def _ids(self, task: str) -> list[int]:
        """Return a sentence's tokens. A dataset has few sentences, and each is read once.

        Prompts that hold the state are many; they do not fill the memory.
        """
        if task not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            found = self._tokenizer(task, max_length=self.max_length, truncation=self.truncation)
            self._known[task] = found["input_ids"]
            if len(found["input_ids"]) == self.max_length:
                self._tell_cut(task)
        return self._known[task]

    def _tell_cut(self, task: str) -> None:
        """Warn of the first sentence that is cut."""
        length = self.length(task)
        if length > self.max_length and not self._told:
            self._told.append(task)
            _log.warning(
                "a task sentence of %d tokens is cut to %d: '%s' (others are not named)",
                length,
                self.max_length,
                task,
            )

    def _pad_id(self) -> int:
        if self._tokenizer.pad_token_id is None:
            raise PolicyError(
                f"{self.tokenizer_name}: its tokenizer has no padding token",
                rule="sentences of different lengths are padded to one",
                remedy="add pad_token to its tokenizer_config.json",
            )
        return self._tokenizer.pad_token_id

    def config(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "max_length": self.max_length,
            "task_key": self.task_key,
            "padding_side": self.padding_side,
            "padding": self.padding,
            "truncation": self.truncation,
            "tokenizer_name": self.tokenizer_name,
        }


STEPS[Tokenize.registry_name] = Tokenize


@dataclass(frozen=True)
class EndWithNewline(Step):
    """A step that ends each task sentence with a newline, as prompts of SmolVLA and π0 do."""

    registry_name: ClassVar[str] = "smolvla_new_line_processor"

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with sentences that end with a newline; DataError comes later."""
        tasks = batch.get(TASK)
        if isinstance(tasks, str):
            tasks = [tasks]
        if not tasks or not all(isinstance(task, str) for task in tasks):
            return batch
        return {**batch, TASK: [t if t.endswith("\n") else f"{t}\n" for t in tasks]}


class EndPi0WithNewline(EndWithNewline):
    """The same step under the name that π0 has for it."""

    registry_name: ClassVar[str] = "pi0_new_line_processor"


for step in (EndWithNewline, EndPi0WithNewline):
    STEPS[step.registry_name] = step
