"""A CLIP model of a few thousand numbers: a local folder with its config and tokenizer files,
written as plain JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ("push", "the", "block", "reach", "red", "insert", "peg")
START, END = "<|startoftext|>", "<|endoftext|>"


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """Letters and digits, each also as a word's end, a few words built up from the left, and
    CLIP's two marks.
    """
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges: list[str] = []
    for word in WORDS:
        parts = [*word[:-1], f"{word[-1]}</w>"]
        left = parts[0]
        for part in parts[1:]:
            merges.append(f"{left} {part}")
            left += part
            tokens.append(left)
    tokens = [*dict.fromkeys(tokens), START, END]
    return {token: number for number, token in enumerate(tokens)}, list(dict.fromkeys(merges))


def sizes(width: int = 32, image: int = 32, patch: int = 16) -> dict[str, dict[str, Any]]:
    """Options of CLIPTextConfig and CLIPVisionConfig."""
    vocab, _ = vocabulary()
    shared = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ends = {"bos_token_id": vocab[START], "eos_token_id": vocab[END], "pad_token_id": vocab[END]}
    text = {**shared, **ends, "vocab_size": len(vocab), "max_position_embeddings": 16}
    return {
        "text_config": text,
        "vision_config": {**shared, "image_size": image, "patch_size": patch},
    }


def write_with_weights(folder: Path) -> Path:
    """The folder with weights too, which transformers starts at random."""
    from transformers import CLIPConfig, CLIPModel

    write(folder)
    CLIPModel(CLIPConfig.from_pretrained(folder)).save_pretrained(folder)
    return write(
        folder
    )  # the config that was saved beside the weights is longer, and says the same


def write(folder: Path, *, width: int = 32, image: int = 32, patch: int = 16) -> Path:
    """The folder, with config.json, vocab.json and merges.txt: all but the weights."""
    vocab, merges = vocabulary()
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "clip", "projection_dim": width, **sizes(width, image, patch)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder
