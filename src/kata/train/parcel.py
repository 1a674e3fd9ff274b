"""What came of a rank's share of an evaluation on its way to rank 0: plain values, the log and the films in one zip."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

FOUND = "found.json"
LOG_BYTES = 2**16
"""Of a log the end is sent: environments may say a line per step."""


def pack(found: dict[str, Any], home: Path | None = None) -> bytes:
    """Values, and from the folder `home` the ends of logs and, unless the values tell of an error, the films."""
    parcel = io.BytesIO()
    with ZipFile(parcel, "w") as archive:
        archive.writestr(FOUND, json.dumps(found))
        for path in sorted(home.glob("log*.txt")) if home else []:
            archive.writestr(path.name, path.read_bytes()[-LOG_BYTES:])
        for path in sorted(home.glob("videos/*")) if home and "error" not in found else []:
            archive.write(path, f"videos/{path.name}")
    return parcel.getvalue()


def unpack(parcel: bytes, home: Path) -> dict[str, Any]:
    """The values; the files go to `home`."""
    with ZipFile(io.BytesIO(parcel)) as archive:
        archive.extractall(home, [name for name in archive.namelist() if name != FOUND])
        return json.loads(archive.read(FOUND))
