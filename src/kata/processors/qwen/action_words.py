"""The step of training that writes Wall-X's chunks of actions as words of its tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from kata.errors import DataError, PolicyError
from kata.processors.action_tokens import UNKNOWN, padded_sentences, unknown_detail
from kata.processors.counted_warning import CountedWarning
from kata.processors.fast import FastTokens, read_fast
from kata.processors.qwen.wall_x import LONGEST
from kata.processors.steps import STEPS, Step
from kata.processors.tokenize import read_tokenizer
from kata.spec import ACTION, LANGUAGE_MASK, Batch, dim_pad_key

WORD = "<|action_token_{}|>"
END, NEW_LINE = "<|im_end|>", "\n"


@dataclass(frozen=True)
class ActionWords:
    """Chunks of actions as words: the prompt's last token, the words, an end, a new line.

    Attributes:
        fast: the action tokenizer.
        words: the language model's token for each action token.
        begin: the prompt's last token, a new line, which the first word is predicted from.
        end: the tokens behind the words. The first ends a chunk.
    """

    fast: FastTokens
    words: tuple[int, ...]
    begin: int
    end: tuple[int, ...]

    def written(self, codes: Sequence[int]) -> list[int]:
        """Return the language model's tokens of a chunk's action tokens."""
        return [self.begin, *(self.words[code] for code in codes), *self.end]

    def codes(self, tokens: Sequence[int]) -> list[int]:
        """Return the action tokens among tokens up to the end; others have no meaning."""
        known = {word: code for code, word in enumerate(self.words)}
        told = list(tokens)
        if self.end[0] in told:
            told = told[: told.index(self.end[0])]
        return [known[token] for token in told if token in known]


@functools.cache
def read_words(fast_name: str, text_name: str) -> ActionWords:
    """Read both tokenizers; PolicyError if one cannot be had, or they do not fit together.

    Args:
        fast_name: action tokenizer, a Hub name or a folder.
        text_name: the model whose tokenizer is taken, the same.
    """
    fast, text = read_fast(fast_name), read_tokenizer(text_name)
    known = text.get_vocab()
    names = [WORD.format(code) for code in range(fast.size)]
    lacking = [name for name in names if name not in known]
    if lacking:
        raise PolicyError(
            f"{text_name}: its tokenizer has no token {lacking[0]} ({len(lacking)} of "
            f"{fast.size} of {fast_name} are absent)",
            rule="with policy.prediction_mode=fast the model has a word for each action token",
            remedy="a model for actions as words, such as x-square-robot/wall-oss-fast, or "
            "--policy.prediction_mode=diffusion",
        )
    end = text(f"{END}{NEW_LINE}", add_special_tokens=False)["input_ids"]
    (begin,) = text(NEW_LINE, add_special_tokens=False)["input_ids"]
    return ActionWords(fast, tuple(known[name] for name in names), begin, tuple(end))


@dataclass(frozen=True)
class WriteActionWords(Step):
    """A step that adds the words of normalized chunks; LeRobot's policy writes them itself.

    Numbers that the first action of a chunk does not have are left out. Reading actions lets the
    host wait for the device.

    Attributes:
        action_tokenizer_name: a Hub name or a folder.
        tokenizer_name: of the model, the same.
        most: tokens that acting writes; more than that are counted.
    """

    registry_name: ClassVar[str] = "wall_x_action_words"
    is_saved: ClassVar[bool] = False

    action_tokenizer_name: str
    tokenizer_name: str
    most: int
    _long: CountedWarning = field(init=False, repr=False, compare=False)
    _unknown: CountedWarning = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.words()
        object.__setattr__(self, "_long", CountedWarning("%d of %d chunks are not finished"))
        object.__setattr__(self, "_unknown", CountedWarning(UNKNOWN))

    def words(self) -> ActionWords:
        """Return both tokenizers."""
        return read_words(self.action_tokenizer_name, self.tokenizer_name)

    def __call__(self, batch: Batch) -> Batch:
        """Add tokens int64 (B, L) and mask bool (B, L) on the CPU, if there are actions."""
        if ACTION not in batch:
            return batch
        chunks = batch[ACTION].detach().float().cpu()
        has = ~chunks[:, 0].isnan()
        if dim_pad_key(ACTION) in batch:
            has &= ~batch[dim_pad_key(ACTION)].cpu()
        rows = [
            self._row(chunk[:, own].nan_to_num(nan=0.0))
            for chunk, own in zip(chunks, has, strict=True)
        ]
        prompts: list[int] = batch[LANGUAGE_MASK].sum(1).tolist()
        for prompt, row in zip(prompts, rows, strict=True):
            _refuse_long(prompt, len(row))
        return {**batch, **padded_sentences(rows)}

    def _row(self, chunk: torch.Tensor) -> list[int]:
        """Return the tokens of a chunk (T, A)."""
        words = self.words()
        (codes,) = words.fast.encode(chunk[None].numpy())
        is_unknown = not words.fast.holds(codes, chunk.numel())
        self._unknown.note(is_unknown, unknown_detail(self.action_tokenizer_name))
        # The end counts, the new line behind it does not.
        wanted = len(codes) + 1
        self._long.note(
            wanted > self.most,
            f" in acting: this one has {wanted} tokens with its end, and "
            f"policy.max_decoding_steps is {self.most}",
        )
        return words.written(codes)

    def config(self) -> dict[str, Any]:
        """Return the options."""
        return {
            "action_tokenizer_name": self.action_tokenizer_name,
            "tokenizer_name": self.tokenizer_name,
            "most": self.most,
        }


def _refuse_long(prompt: int, words: int) -> None:
    if prompt + words > LONGEST:
        raise DataError(
            f"a chunk of {words} tokens behind a prompt of {prompt}",
            rule=f"Wall-X reads at most {LONGEST}",
            remedy="fewer cameras, shorter sentences or shorter chunks",
        )


STEPS[WriteActionWords.registry_name] = WriteActionWords
