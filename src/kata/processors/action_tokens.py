"""The step that writes chunks of actions as sentences in the tokens of a language model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kata.errors import DataError, PolicyError
from kata.processors.counted_warning import CountedWarning
from kata.processors.fast import FastTokens, read_fast
from kata.processors.steps import STEPS, Artifact, Step
from kata.processors.tokenize import read_tokenizer, tokenizer_artifact, tokenizer_files
from kata.spec import ACTION, ACTION_TOKEN_MASK, ACTION_TOKENS, Batch

PALIGEMMA = "google/paligemma-3b-pt-224"
LEAD, END = "Action: ", "|"
"""Text before and after the tokens of a chunk."""

UNKNOWN = "%d of %d chunks hold values that the action tokenizer does not know"

ROUND = 16
"""Sentences of a batch are padded to a multiple of it."""


@dataclass(frozen=True)
class ActionSentences:
    """Chunks of actions as sentences: a beginning, `Action: `, the action tokens, `|`, an end.

    Attributes:
        fast: the action tokenizer.
        begin: the language model's token for the beginning of a sentence.
        lead: its tokens of `Action: `.
        bar: its token of `|`.
        end: its tokens of `|`, and for the end of a sentence.
        highest: the token that stands for action token 0; those below it for the next ones.
    """

    fast: FastTokens
    begin: int
    lead: tuple[int, ...]
    bar: int
    end: tuple[int, ...]
    highest: int

    def written(self, codes: Sequence[int]) -> list[int]:
        """Return the sentence of a chunk's action tokens, in the language model's tokens."""
        own = [self.highest - code for code in codes]
        return [self.begin, *self.lead, *own, *self.end]

    def chunk(self, tokens: Sequence[int], steps: int, dims: int) -> NDArray[np.float64]:
        """Return the chunk (steps, dims) that a sentence without its beginning stands for."""
        codes = list(tokens)
        if self.bar in codes:
            codes = codes[: codes.index(self.bar)]
        at = 0
        while at <= len(codes) - len(self.lead):
            if tuple(codes[at : at + len(self.lead)]) == self.lead:
                del codes[at : at + len(self.lead)]
            else:
                at += 1
        return self.fast.decode([self.highest - code for code in codes], steps, dims)

    def begins_well(self, tokens: Sequence[int]) -> bool:
        """Return True if a sentence without its beginning starts with `Action` and a colon."""
        start = self.lead[:2]
        return tuple(tokens[: len(start)]) == start


@functools.cache
def read_sentences(fast_name: str, text_name: str, skipped: int) -> ActionSentences:
    """Read both tokenizers; PolicyError if one cannot be had, or they do not fit together.

    Args:
        fast_name: action tokenizer, a Hub name or a folder.
        text_name: tokenizer of the language model, the same.
        skipped: last tokens of the language model that stand for no action token.
    """
    fast, text = read_fast(fast_name), read_tokenizer(text_name)
    highest = text.vocab_size - 1 - skipped
    if highest < fast.size:
        raise PolicyError(
            f"{fast_name}: {fast.size} tokens, with policy.fast_skip_tokens={skipped}",
            rule=f"they stand for the last of the {text.vocab_size} tokens of {text_name}",
            remedy="a smaller action tokenizer, or fewer skipped tokens",
        )
    lead = tuple(text.encode(LEAD, add_special_tokens=False))
    end = (*text.encode(END, add_special_tokens=False), text.eos_token_id)
    bar = text.convert_tokens_to_ids(END)
    return ActionSentences(fast, text.bos_token_id, lead, bar, end, highest)


def unknown_detail(name: str) -> str:
    """Return what follows from values that an action tokenizer does not know, and the remedy."""
    return (
        ": it drops them, and the policy learns other actions. Fit a tokenizer to these data, in "
        f"place of {name}"
    )


def padded_sentences(rows: Sequence[Sequence[int]], most: int | None = None) -> Batch:
    """Return sentences as tokens int64 (B, L) and mask bool (B, L), padded behind.

    L is the length of the longest, rounded up, and no more than `most`.
    """
    longest = -(-max(len(row) for row in rows) // ROUND) * ROUND
    length = longest if most is None else min(longest, most)
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    return {ACTION_TOKENS: tokens, ACTION_TOKEN_MASK: mask}


@dataclass(frozen=True)
class ActionTokens(Step):
    """A step that adds the tokens of normalized chunks of actions; LeRobot's options.

    The language model's tokenizer may be read when the first actions come: acting does not need it
    here. Reading actions lets the host wait for the device.

    Attributes:
        trust_remote_code: a field of LeRobot's; kata runs no code from the Hub.
        reads_actions: True if actions will come, so that the language model's tokenizer is read,
            and what does not fit is refused, at once.
        allow_truncation: False raises DataError for a sentence longer than `max_action_tokens`.
    """

    registry_name: ClassVar[str] = "action_tokenizer_processor"

    action_tokenizer_name: str
    trust_remote_code: bool = True
    max_action_tokens: int = 256
    fast_skip_tokens: int = 128
    paligemma_tokenizer_name: str = PALIGEMMA
    allow_truncation: bool = True
    reads_actions: bool = False
    _cut: CountedWarning = field(init=False, repr=False, compare=False)
    _unknown: CountedWarning = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        read_fast(self.action_tokenizer_name)
        tokenizer_files(self.action_tokenizer_name)
        if self.reads_actions:
            self.sentences()
        object.__setattr__(self, "_cut", CountedWarning("%d of %d action sentences are cut"))
        object.__setattr__(self, "_unknown", CountedWarning(UNKNOWN))

    def sentences(self) -> ActionSentences:
        """Return both tokenizers."""
        return read_sentences(
            self.action_tokenizer_name, self.paligemma_tokenizer_name, self.fast_skip_tokens
        )

    def __call__(self, batch: Batch) -> Batch:
        """Add tokens int64 (B, L) and mask bool (B, L) on the CPU, if there are actions.

        L is the length of the longest sentence, rounded up, and at most `max_action_tokens`.
        """
        if ACTION not in batch:
            return batch
        given: Tensor = batch[ACTION].detach().float().cpu()
        return {**batch, **padded_sentences(self._rows(given.numpy()), self.max_action_tokens)}

    def _rows(self, chunks: NDArray[np.float32]) -> list[list[int]]:
        """Return the sentences of chunks (B, T, A)."""
        sentences, count = self.sentences(), chunks.shape[1] * chunks.shape[2]
        rows: list[list[int]] = []
        for codes in sentences.fast.encode(chunks):
            is_unknown = not sentences.fast.holds(codes, count)
            self._unknown.note(is_unknown, unknown_detail(self.action_tokenizer_name))
            rows.append(self._fitting(sentences.written(codes)))
        return rows

    def _fitting(self, row: list[int]) -> list[int]:
        """Return a sentence of at most `max_action_tokens` tokens."""
        is_long = len(row) > self.max_action_tokens
        if is_long and not self.allow_truncation:
            raise DataError(
                f"an action sentence of {len(row)} tokens, with "
                f"policy.max_action_tokens={self.max_action_tokens}",
                rule="with policy.allow_truncation=false no sentence is cut",
                remedy=f"--policy.max_action_tokens={-(-len(row) // ROUND) * ROUND} or more, or "
                "shorter chunks",
            )
        detail = (
            f": this one has {len(row)} tokens, policy.max_action_tokens is "
            f"{self.max_action_tokens}. The policy does not learn how cut chunks end"
        )
        self._cut.note(is_long, detail)
        return row[: self.max_action_tokens]

    def artifacts(self) -> dict[str, Artifact]:
        """Return both tokenizers, those of folders."""
        actions, text = self.action_tokenizer_name, self.paligemma_tokenizer_name
        return {
            **tokenizer_artifact("action_tokenizer_name", "action_tokenizer", actions),
            **tokenizer_artifact("paligemma_tokenizer_name", "tokenizer", text),
        }

    def config(self) -> dict[str, Any]:
        """Return the fields that LeRobot 0.6.1 reads."""
        return {
            "trust_remote_code": self.trust_remote_code,
            "max_action_tokens": self.max_action_tokens,
            "action_tokenizer_name": self.action_tokenizer_name,
            "fast_skip_tokens": self.fast_skip_tokens,
            "paligemma_tokenizer_name": self.paligemma_tokenizer_name,
        }


STEPS[ActionTokens.registry_name] = ActionTokens
