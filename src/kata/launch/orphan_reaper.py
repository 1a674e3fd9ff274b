"""Ends the ranks when their launcher dies. Run as a script of its own, so that even SIGKILL leaves
nothing running.

Reads process groups from stdin, one number a line. `done` ends it in peace; the end of the input
without that means that the launcher is gone, and every group is killed.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read until the launcher is done or dead."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    for group in groups:
        with contextlib.suppress(
            ProcessLookupError, PermissionError
        ):  # gone already, or of another since
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
