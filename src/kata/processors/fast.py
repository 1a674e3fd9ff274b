"""FAST action tokens: a cosine transform over time, rounding, byte pairs (arXiv 2501.09747)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.errors import DataError, PolicyError
from kata.processors.pretrained import require_files, unreadable

PAIRS, OPTIONS = "tokenizer.json", "processor_config.json"
"""The files of an action tokenizer. The Python file beside them on the Hub is not run."""

LARGEST = 0xD7FF
"""The largest shifted coefficient: behind it are characters that no text may hold."""


@dataclass(frozen=True)
class FastTokens:
    """An action tokenizer.

    Attributes:
        name: a Hub name or a folder, for messages.
        pairs: the byte pairs, a `tokenizers.Tokenizer`.
        scale: coefficients are multiplied by it before they are rounded.
        lowest: the coefficient that is written as the first character.
    """

    name: str
    pairs: Any
    scale: float
    lowest: int

    @property
    def size(self) -> int:
        """Return the number of tokens."""
        return self.pairs.get_vocab_size()

    def encode(self, chunks: NDArray[np.floating[Any]]) -> list[list[int]]:
        """Return the tokens of each chunk (B, T, A).

        Raises:
            DataError: a number is not finite, or too far from zero.
        """
        wide = cosines(chunks.shape[1]) @ chunks.astype(np.float64)
        shifted = np.maximum(np.around(wide * self.scale) - self.lowest, 0)
        if not (shifted <= LARGEST).all():  # also for NaN
            raise DataError(
                f"actions up to {np.abs(chunks).max():g} after normalization",
                rule="action tokens write finite numbers, of which few are far from zero",
                remedy="look for wrong actions with kata data check, or choose another mode for "
                "ACTION in policy.normalization_mapping",
            )
        rows = shifted.astype(np.int64).reshape(len(chunks), -1)
        texts = ["".join(map(chr, row)) for row in rows.tolist()]
        return [found.ids for found in self.pairs.encode_batch(texts)]

    def holds(self, tokens: Sequence[int], count: int) -> bool:
        """Return True if tokens stand for `count` coefficients.

        The byte pairs drop characters that they do not know; decoding then shifts those after.
        """
        return len(self.pairs.decode(list(tokens), skip_special_tokens=False)) == count

    def decode(self, tokens: Sequence[int], steps: int, dims: int) -> NDArray[np.float64]:
        """Return a chunk (steps, dims), of zeros for tokens without a meaning.

        As LeRobot does, coefficients beyond the chunk are dropped, and absent ones are zero.
        """
        if any(token < 0 for token in tokens):
            return np.zeros((steps, dims))
        text: str = self.pairs.decode(list(tokens), skip_special_tokens=False)
        wide = np.zeros(steps * dims)
        kept = [ord(letter) + self.lowest for letter in text[: steps * dims]]
        wide[: len(kept)] = kept
        return cosines(steps).T @ (wide.reshape(steps, dims) / self.scale)


@functools.cache
def cosines(steps: int) -> NDArray[np.float64]:
    """Return the orthonormal cosine transform of `steps` numbers (the second kind), a matrix."""
    rows, columns = np.arange(steps)[:, None], np.arange(steps)
    matrix = np.sqrt(2 / steps) * np.cos(np.pi * (2 * columns + 1) * rows / (2 * steps))
    matrix[0] /= np.sqrt(2)
    return matrix


@functools.cache
def read_fast(name: str) -> FastTokens:
    """Return the action tokenizer of a folder or a Hub name; nothing there is run.

    Raises:
        PolicyError: a file is absent or damaged. The message says how to fetch it.
    """
    from tokenizers import Tokenizer  # needed by few policies

    require_files(name, "an action tokenizer", [(PAIRS, OPTIONS)])
    folder = Path(name) if Path(name).is_dir() else _fetched(name)
    text = (folder / PAIRS).read_text(encoding="utf-8")
    options = _object(folder / OPTIONS, (folder / OPTIONS).read_text(encoding="utf-8"))
    if "model" not in _object(folder / PAIRS, text):
        raise _damaged(folder / PAIRS, "no model in it")
    # Absent options are those of the library that LeRobot runs from the Hub.
    scale, lowest = float(options.get("scale", 10)), int(options.get("min_token", 0))
    return FastTokens(name, Tokenizer.from_str(text), scale, lowest)


def _object(file: Path, text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(found, dict):
        raise _damaged(file, "not an object")
    return found  # pyright: ignore[reportUnknownVariableType]


def _fetched(name: str) -> Path:
    """Return the folder of a Hub name, from the network or the local cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        for file in (PAIRS, OPTIONS):
            found = hf_hub_download(name, file)
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise unreadable(name, "its action tokenizer", error, (PAIRS, OPTIONS)) from error
    return Path(found).parent


def _damaged(file: Path, reason: str) -> PolicyError:
    return PolicyError(
        f"{file}: damaged ({reason})",
        rule="the file of an action tokenizer, as its page on the Hub has it",
        remedy="copy it again",
    )
