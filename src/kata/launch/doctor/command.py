"""`kata doctor`: the facts as text or JSON, then what is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kata.launch.doctor.bandwidth import disk, loopback
from kata.launch.doctor.checks import Finding, findings
from kata.launch.doctor.probe import machine_facts
from kata.launch.options import DoctorOptions
from kata.log import redacted
from kata.tables import table_lines
from kata.units import bytes_text


def main(options: DoctorOptions) -> int:
    """Look, print, and return the exit status."""
    folder = Path(options.output_dir).expanduser().absolute()
    found = {**machine_facts(), "disk": disk(folder), "network": loopback()}
    wrong = findings(found)
    if options.json:
        listed = [dataclasses.asdict(finding) for finding in wrong]
        print(redacted(json.dumps({"facts": found, "findings": listed}, indent=1)))
    else:
        print(redacted(doctor_text(found, wrong)), end="")
    return 1 if wrong else 0


def doctor_text(found: dict[str, Any], wrong: Sequence[Finding]) -> str:
    """Return the findings as text for a person."""
    versions = {name: version for name, version in found["versions"].items() if version is not None}
    memory, at = found["memory"], found["disk"]
    rows = [
        ("system", f"{found['system']}, Python {found['python']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        (
            "not installed",
            ", ".join(name for name in found["versions"] if name not in versions) or "-",
        ),
        (
            "CUDA",
            f"torch built for {found['cuda_of_torch'] or 'the CPU'}; NCCL "
            f"{found['nccl'] or 'none'}",
        ),
        *_gpu_rows(found),
        ("video", _codecs(found)),
        (
            "cores",
            f"{found['cores']}"
            + (f" (limit {found['cores_of_cgroup']:g})" if found["cores_of_cgroup"] else ""),
        ),
        ("memory", f"{_size(memory['available_bytes'])} free of {_size(memory['total_bytes'])}"),
        (
            "disk",
            f"{at['folder']}: {_size(at['free_bytes'])} free, writes {_speed(at, 'write')}, reads "
            f"{_speed(at, 'read')}",
        ),
        ("loopback", f"{_size(found['network']['loopback_bytes_per_s'])} per second"),
        (
            "environment",
            ", ".join(f"{name}={value}" for name, value in found["environment"].items()) or "-",
        ),
    ]
    lines = table_lines(rows)
    for finding in wrong:
        lines += ["", f"wrong: {finding.what}", f"  remedy: {finding.remedy}"]
    if not wrong:
        lines += ["", "nothing is wrong"]
    return "\n".join(lines) + "\n"


def _gpu_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (f"GPU {gpu['index']}", f"{gpu['name']}, " f"{_size(gpu['used_bytes'])} " "of " f"{_size(gpu['memory_bytes'])} " "taken, "  # noqa: E501
         f"compute {gpu['compute_cap']}, driver {gpu['driver_version']}")
        for gpu in found["gpus"]
    ]  # fmt: skip
    joined = ", ".join(f"{pair} {link}" for pair, link in found["links"].items())
    return [*(rows or [("GPUs", "none")]), *([("links", joined)] if joined else [])]


def _codecs(found: dict[str, Any]) -> str:
    reads = ", ".join(
        f"{name} ({' '.join(each) or 'no'})" for name, each in found["decoders"].items()
    )
    return f"decodes {reads}; encodes {', '.join(found['encoders']) or 'nothing'}"


def _size(count: float | None) -> str:
    return "?" if count is None else bytes_text(count)


def _speed(at: dict[str, Any], way: str) -> str:
    return f"{_size(at[f'{way}_bytes_per_s'])}/s"
