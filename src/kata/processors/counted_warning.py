"""Counts of samples that something happened to, as warnings that do not fill the log."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class CountedWarning:
    """A warning about samples. It counts them, and appears at the 1st, 10th, 100th and so on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen, self.found = 0, 0
        self.told_at = 1

    def note(self, is_found: bool, detail: str = "") -> None:
        """Count a sample. The message has two figures: samples found, and samples seen."""
        self.seen += 1
        self.found += is_found
        if is_found and self.found >= self.told_at:
            self.told_at *= 10
            _log.warning("%s%s", self.text % (self.found, self.seen), detail)
