"""The step that turns task sentences into tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from kata.errors import DataError
from kata.processors.pretrained import require_files, unreadable
from kata.processors.steps import STEPS, Step
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, TASK, Batch

FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))


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

    def __post_init__(self) -> None:
        require_files(self.tokenizer_name, "a tokenizer", FILES)
        from transformers import AutoTokenizer  # slow to import, and needed by few policies

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.tokenizer_name)
        except (OSError, ValueError) as error:
            raise unreadable(self.tokenizer_name, "its tokenizer", error) from error
        object.__setattr__(self, "_tokenizer", tokenizer)

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
        tokens = self._tokenizer(
            list(tasks),
            max_length=self.max_length,
            truncation=self.truncation,
            padding=self.padding,
            padding_side=self.padding_side,
            return_tensors="pt",
        )
        mask = tokens["attention_mask"].to(torch.bool)
        return {**batch, LANGUAGE_TOKENS: tokens["input_ids"], LANGUAGE_MASK: mask}

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
