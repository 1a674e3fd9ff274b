"""What can go wrong between here and the Hugging Face Hub."""

from __future__ import annotations

from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from kata.log import redacted

HUB_ERRORS = (HTTPError, OSError)
"""What its client raises: an answer that says no, no answer, and no way there."""


def reason(error: Exception) -> str:
    """The error in one line, without secrets."""
    return redacted(" ".join(str(error).split())[:300]) or type(error).__name__
