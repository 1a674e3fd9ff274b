"""A folder that stands in for PaliGemma's tokenizer on the Hub: letters, and bytes for others."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

MARKS = ("<pad>", "<eos>", "<bos>", "<unk>")
BYTES = tuple(f"<0x{number:02X}>" for number in range(256))
LETTERS = "\u2581\n abcdefghijklmnopqrstuvwxyzATS0123456789,:;|_-"


def tokenizer(size: int = 0, words: tuple[str, ...] = ()) -> Tokenizer:
    """Ids of pad, eos, bos and unk are PaliGemma's: 0 to 3. `size` adds places up to this id, and
    the last are `words`, which are a token each.
    """
    vocabulary: dict[str, int] = {}
    for token in (*MARKS, *BYTES, *LETTERS):
        vocabulary.setdefault(token, len(vocabulary))
    for number in range(len(vocabulary), size - len(words)):
        vocabulary[f"<loc{number:04}>"] = number
    made = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    made.add_special_tokens(list(MARKS))
    made.add_tokens(list(words))
    return made


def write(folder: Path, size: int = 0, words: tuple[str, ...] = ()) -> Path:
    """Write the folder of a tokenizer with at least `size` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(size, words).save(str(folder / "tokenizer.json"))
    pad, eos, bos, unk = MARKS
    options = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "unk_token": unk,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder
