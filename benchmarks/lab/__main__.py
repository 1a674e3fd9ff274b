"""Entry point of `python -m benchmarks.lab`."""

import sys

from kata import log
from kata.cli import answer
from kata.config.verb import Verb

LAB = Verb(
    says="measure reading, against the decode floor and against LeRobot",
    usage="<dataset, or folder of datasets> [--peer] [options]",
    work="benchmarks.lab.comparison:compare",
    options="benchmarks.lab.options:LabRun",
    word="root",
)

if __name__ == "__main__":
    log.configure()
    sys.exit(answer(LAB, sys.argv[1:], "python -m benchmarks.lab"))
