"""The step that turns task sentences into tokens."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from kata.errors import DataError, PolicyError
from kata.processors.pretrained import require_files, unreadable
from kata.processors.steps import STEPS, Artifact, Step
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, TASK, Batch

_log = logging.getLogger(__name__)

DOWNLOADS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
KEPT = 4096
"""Sentences whose tokens are kept."""

KEPT_FILES = (
    *DOWNLOADS,
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    "processing_action_tokenizer.py",
    "processor_config.json",
    "tokenizer.model",
    "vocab.json",
)
"""Files of a tokenizer, of sentences or of actions, that go into checkpoints. Without a tokenizer
config, transformers takes the kind from the model's config.json. LeRobot runs the Python file, kata
does not.
"""

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


@functools.cache
def tokenizer_files(name: str) -> dict[str, bytes]:
    """Return the files of a tokenizer's folder; none of a Hub name, which is there everywhere.

    They are read when the tokenizer is, since the folder may be gone when a checkpoint is written.
    """
    folder = Path(name).expanduser()
    found: dict[str, bytes] = {}
    for file in KEPT_FILES:
        if folder.is_dir() and (folder / file).is_file():
            found[file] = (folder / file).read_bytes()
    return found


def tokenizer_artifact(option: str, place: str, name: str) -> dict[str, Artifact]:
    """Return a tokenizer's files as the artifact of a step; nothing for a Hub name.

    Args:
        option: the step's option that names the tokenizer.
        place: name of the folder in checkpoints.
        name: a Hub name or a folder.
    """
    files = tokenizer_files(name)
    return {option: Artifact(place, files)} if files else {}


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
        tokenizer_files(self.tokenizer_name)

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

    def artifacts(self) -> dict[str, Artifact]:
        """Return the tokenizer, if it is one of a folder."""
        return tokenizer_artifact("tokenizer_name", "tokenizer", self.tokenizer_name)

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
