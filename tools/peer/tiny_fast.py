"""A folder that stands in for the action tokenizer on the Hub: a few coefficients and pairs."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

LOWEST, COUNT = -40, 81
"""The smallest coefficient, and how many there are from it on."""

PAIRS = ((0, 0), (0, 1), (-1, 0), (2, -3), (5, 1))
"""Coefficients, two of which are one token."""


def letters(coefficient: int) -> str:
    """Return the letters that byte pairs make of a coefficient's character."""
    (found,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
        chr(coefficient - LOWEST)
    )
    return found[0]


def tokenizer() -> Tokenizer:
    """All coefficients, then the pairs."""
    names = [letters(LOWEST + number) for number in range(COUNT)]
    merges = [(letters(one), letters(other)) for one, other in PAIRS]
    names += [one + other for one, other in merges]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def write(folder: Path) -> Path:
    """Write the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    options = {
        "processor_class": "UniversalActionProcessor",
        "scale": 10,
        "min_token": LOWEST,
        "vocab_size": COUNT + len(PAIRS),
        "time_horizon": None,
        "action_dim": None,
    }
    (folder / "processor_config.json").write_text(json.dumps(options))
    return folder
