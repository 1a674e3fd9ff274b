"""The machines of Hugging Face Jobs: read from the service, else the table of August 2026."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from huggingface_hub import HfApi

from kata.errors import ConfigError, did_you_mean
from kata.launch.hub_errors import HUB_ERRORS, reason
from kata.tables import table_lines

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Flavor:
    """A machine. gpus: how many, 0 for none. usd_per_hour: as of the day the table was read."""

    name: str
    gpus: int
    gpu: str
    vram_gb: int
    cores: int
    memory_gb: int
    usd_per_hour: float


# name, GPUs, GPU, memory of one (GB), cores, memory (GB), dollars an hour
_TABLE = """
cpu-basic        0 -              0   2   16  0.01
cpu-upgrade      0 -              0   8   32  0.03
cpu-performance  0 -              0  32  256  1.90
cpu-xl           0 -              0  16  124  1.00
t4-small         1 T4            16   4   15  0.40
t4-medium        1 T4            16   8   30  0.60
l4x1             1 L4            24   8   30  0.80
l4x4             4 L4            24  48  186  3.80
a10g-small       1 A10G          24   4   15  1.00
a10g-large       1 A10G          24  12   46  1.50
a10g-largex2     2 A10G          24  24   92  3.00
a10g-largex4     4 A10G          24  48  184  5.00
l40sx1           1 L40S          48   8   62  1.80
l40sx4           4 L40S          48  48  382  8.30
l40sx8           8 L40S          48 192 1534 23.50
a100-large       1 A100          80  12  142  2.50
a100x4           4 A100          80  48  568 10.00
a100x8           8 A100          80  96 1136 20.00
h200             1 H200         141  23  256  5.00
h200x2           2 H200         141  46  512 10.00
h200x4           4 H200         141  92 1024 20.00
h200x8           8 H200         141 184 2048 40.00
rtx-pro-6000     1 RTX-PRO-6000  96  23  256  2.75
rtx-pro-6000x2   2 RTX-PRO-6000  96  46  512  5.50
rtx-pro-6000x4   4 RTX-PRO-6000  96  92 1024 11.00
rtx-pro-6000x8   8 RTX-PRO-6000  96 184 2048 22.00
"""


def known_flavors() -> dict[str, Flavor]:
    """The flavors of August 2026, by name."""
    rows = [line.split() for line in _TABLE.strip().splitlines()]
    return {
        r[0]: Flavor(r[0], int(r[1]), r[2], int(r[3]), int(r[4]), int(r[5]), float(r[6]))
        for r in rows
    }


def flavors() -> dict[str, Flavor]:
    """Return the machines that the service offers now.

    If the service cannot be reached, log that and return the known ones.
    """
    try:
        found = HfApi().list_jobs_hardware()
    except HUB_ERRORS as error:
        text = "the service's machines could not be asked for (%s): going by those of August 2026"
        _log.warning(text, reason(error))
        return known_flavors()
    listed: dict[str, Flavor] = {}
    for each in found:
        unit = each.accelerator
        gpus, vram = (_first(unit.quantity), _first(unit.vram)) if unit is not None else (0, 0)
        per_hour = each.unit_cost_usd * {"minute": 60, "second": 3600}.get(each.unit_label, 1)
        model = "-" if unit is None else unit.model.replace(" ", "-")
        listed[each.name] = Flavor(
            each.name, gpus, model, vram, _first(each.cpu), _first(each.ram), round(per_hour, 4)
        )
    return listed


def chosen_flavor(name: str) -> Flavor:
    """The flavor of that name; ConfigError, with the nearest, where there is none."""
    offered = flavors()
    if name not in offered:
        raise ConfigError(
            f"target=hf:{name}: no such machine",
            rule="one of the service's flavors; `kata launch flavors` lists them",
            remedy=did_you_mean(name, offered),
        )
    return offered[name]


def flavors_text() -> str:
    """Return the table of what is offered."""
    rows = [["flavor", "GPUs", "GPU", "GB each", "cores", "memory GB", "$/h"]]
    for f in flavors().values():
        figures = (f.name, f.gpus, f.gpu, f.vram_gb, f.cores, f.memory_gb, f"{f.usd_per_hour:.2f}")
        rows.append([str(figure) for figure in figures])
    return "\n".join(table_lines(rows)) + "\n"


def _first(text: str) -> int:
    """The number that a text such as '24 GB' or '12 vCPU' begins with."""
    return int(float(text.split()[0]))
