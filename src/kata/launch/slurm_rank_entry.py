"""A rank of a batch job: `python -m kata.launch.slurm_rank_entry train …` under torchrun.

torchrun takes every exit status but 0 for a failure and ends with 1. So a run that was asked to
stop and saved (85) leaves with 0 and is noted in the file $KATA_STOPPED_NOTE. The process numbers
of a node's ranks are written to $KATA_RANK_PIDS<node>, for the signal that asks them to save.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType

from kata.launch.local_ranks import STOPPED


def main() -> None:
    """Run kata with this process's arguments."""
    # Until the run minds signals itself there is nothing new to save: leave as one that has.
    signal.signal(signal.SIGUSR1, _leave)
    with Path(os.environ["KATA_RANK_PIDS"] + os.environ["SLURM_NODEID"]).open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    try:
        runpy.run_module("kata", run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code != STOPPED:
            raise
        Path(os.environ["KATA_STOPPED_NOTE"]).touch()


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(STOPPED)


if __name__ == "__main__":
    main()
