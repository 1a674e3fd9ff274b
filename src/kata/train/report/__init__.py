"""The report of a run: one HTML file that needs nothing beside it."""

from __future__ import annotations

from kata.train.report.page import write_report
from kata.train.report.parts import Filmstrip, PlanView, ReportContent, SampleView

__all__ = ["Filmstrip", "PlanView", "ReportContent", "SampleView", "write_report"]
