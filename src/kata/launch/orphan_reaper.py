"""A script that ends the ranks if their launcher dies. It survives a SIGKILL of the launcher.

It reads process groups from stdin, one number a line. The line `done` ends it. If the input ends
without that line, the launcher is gone, and every group is killed.
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
