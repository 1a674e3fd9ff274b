"""`kata data check`: everything that is wrong with a dataset, before it costs a night."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from kata.data.check import check_dataset
from kata.data.check.faults import RecordingFaults
from kata.data.check.findings import Report
from kata.data.check.recording.page import check_page
from kata.data.commands.options import CheckOptions, source_of
from kata.data.commands.output import new_file, write_whole
from kata.data.dataset.dataset import open_source
from kata.data.format.source import Source
from kata.log import counting

_say = logging.getLogger(__name__).info

PROBLEMS = 1
"""Exit status when there are errors."""


def main(options: CheckOptions) -> int:
    """Check, print the report; 0 without errors, 1 with."""
    source = source_of(options.dataset)
    targets = _Targets.of(options, source)
    recording = options.recording or targets.report or targets.ranges
    report = check_dataset(
        source,
        episodes=options.dataset.episodes,
        exclude_episodes=options.dataset.exclude_episodes,
        decode=options.decode,
        sampled_frames=options.sampled_frames if recording else None,
        threads=options.threads,
        counting=counting,
    )
    print(json.dumps(report.plain(), indent=2) if options.json else report.text(options.examples))
    for line in targets.write(report, source):
        _say("%s", line)
    return PROBLEMS if report.errors else 0


@dataclass(frozen=True)
class _Targets:
    """The files that a check writes."""

    report: Path | None
    ranges: Path | None

    @classmethod
    def of(cls, options: CheckOptions, source: Source) -> _Targets:
        """Refuse impossible files before the work."""
        found: list[Path | None] = []
        for name, text in (("report", options.report), ("write_ranges", options.write_ranges)):
            target = None
            if text is not None:
                target = new_file(name, text, dataset=source.root, overwrite=options.overwrite)
            found.append(target)
        return cls(*found)

    def write(self, report: Report, source: Source) -> list[str]:
        """Write the files; returns what to say about them."""
        said: list[str] = []
        recording = report.recording or RecordingFaults()
        if self.ranges is not None:
            ranges = recording.keep_ranges()
            lines = [f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in ranges.items()]
            text = "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"
            write_whole(self.ranges, text.encode())
            said.append(
                f"{self.ranges}: {len(ranges)} episodes cut, {len(recording.spoiled())} of them "
                f"left out; train with --dataset.keep_ranges={self.ranges}"
            )
        if self.report is not None:
            data = None
            if recording.lengths:
                episodes = list(recording.lengths)
                data = open_source(source, episodes=episodes)
            write_whole(self.report, check_page(report, data, self.ranges))
            said.append(f"written: {self.report}")
        return said
