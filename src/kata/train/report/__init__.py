"""The report of a run: one HTML file that needs nothing beside it."""

from __future__ import annotations

from kata.train.report.page import write_report
from kata.train.report.parts import Filmstrip, Report, SampleView

__all__ = ["Filmstrip", "Report", "SampleView", "write_report"]
