"""Errors on the way to the Hugging Face Hub."""

from __future__ import annotations

from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from kata.log import redacted

HUB_ERRORS = (HTTPError, OSError)
"""Exceptions of its client: a refusal, no answer, or no connection."""


def reason(error: Exception) -> str:
    """The error in one line, without secrets."""
    return redacted(" ".join(str(error).split())[:300]) or type(error).__name__
