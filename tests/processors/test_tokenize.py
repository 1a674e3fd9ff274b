"""Tokens of task sentences: the tokenizer's own, each sentence read once."""

from unittest import mock

import pytest
import torch

from kata.processors.tokenize import EndWithNewline, Tokenize
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, TASK

SENTENCES = ["push the block", "reach", "push the block", "reach the red peg"]


@pytest.mark.parametrize("padding", ["max_length", "longest"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("length", [3, 12])
def test_tokens_are_those_of_the_tokenizer(tiny_clip, padding, side, length):
    from transformers import AutoTokenizer

    options = {"max_length": length, "padding": padding, "padding_side": side}
    theirs = AutoTokenizer.from_pretrained(tiny_clip)(
        SENTENCES, truncation=True, return_tensors="pt", **options
    )
    found = Tokenize(str(tiny_clip), **options)({TASK: SENTENCES})
    assert torch.equal(found[LANGUAGE_TOKENS], theirs["input_ids"])
    assert torch.equal(found[LANGUAGE_MASK], theirs["attention_mask"].bool())


def test_a_sentence_is_read_once(tiny_clip):
    step = Tokenize(str(tiny_clip), max_length=12)
    first = step({TASK: SENTENCES})
    with mock.patch.object(type(step._tokenizer), "__call__", side_effect=AssertionError):
        again = step({TASK: SENTENCES})
    assert torch.equal(first[LANGUAGE_TOKENS], again[LANGUAGE_TOKENS])


def test_sentences_end_with_one_newline():
    step = EndWithNewline()
    assert step({TASK: ["push", "reach\n"]})[TASK] == ["push\n", "reach\n"]
    assert step({TASK: "push"})[TASK] == ["push\n"]
    assert step({}) == {}
