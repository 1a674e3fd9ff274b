"""Reads and repairs every dataset below a folder, and opens the results with LeRobot.

    python tools/odd/run.py FOLDER [--peer PYTHON] [--out FOLDER] [--result FILE.json]

FOLDER holds one dataset a folder; kata is importable here. Each dataset is read whole, and its
frames are compared with those that PyAV and Pillow decode. It is then checked, repaired and checked
again. What is of format v2.1 then becomes v3.0 twice, by `kata data convert` and by LeRobot's own
converter. LeRobot opens every result and reads every item of it. PYTHON is that of an environment
with LeRobot 0.6.1; without it that part is left out. One line per dataset, counts at the end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from kata.cli import main as run_kata
from kata.data import Dataset, Reader, open_dataset
from kata.errors import KataError

HERE = Path(__file__).parent


def kata(*arguments: str) -> tuple[int, Any]:
    """Run a verb of `kata data`; return its status, and its JSON or what it said instead."""
    out, said = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(said):
        status = run_kata(["data", *arguments])
    text = out.getvalue()
    return status, json.loads(text) if text.startswith("{") else said.getvalue()


def pixels(root: Path) -> str:
    """Return 'equal' where every frame is the one that PyAV or Pillow decodes, the message where
    the dataset is refused, else the first camera and frame that differ.
    """
    try:
        data = open_dataset("odd/odd", root=root)
        with Reader(data, {}) as reader:
            read = reader.read(np.arange(data.num_frames))
    except KataError as error:
        whole = error.rule and error.remedy
        return f"refused: {error.what.replace(str(root), root.name)}" if whole else f"poor: {error}"
    for key, column in data.cameras.items():
        truth = recorded_videos if column.dtype == "video" else recorded_images
        for number, (frame, own) in enumerate(zip(truth(data, key), read[key], strict=True)):
            if not np.array_equal(np.broadcast_to(own, frame.shape), frame):
                return f"unlike: {key}, frame {number}"
    return "equal"


def recorded_videos(data: Dataset, key: str) -> Iterator[np.ndarray]:
    """Yield the frames of a camera as PyAV decodes each file from its beginning."""
    span = data.layout.videos[key]
    for file, first, length in zip(span.file, span.first, data.layout.length, strict=True):
        with av.open(str(data.root / span.files[file])) as container:
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        yield from decoded[first : first + length]


def recorded_images(data: Dataset, key: str) -> Iterator[np.ndarray]:
    """Yield the frames of a camera as Pillow decodes the pictures of a table."""
    span = data.layout.data
    for file, first, length in zip(span.file, span.first, data.layout.length, strict=True):
        table = pq.read_table(data.root / span.files[file], columns=[key])
        for image in table[key].to_pylist()[first : first + length]:
            yield np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB"))


def counted(report: Any) -> str:
    """Return errors and warnings of a report, or that there is none."""
    return f"{report['errors']}/{report['warnings']}" if isinstance(report, dict) else "refused"


def examine(root: Path, out: Path) -> dict[str, Any]:
    """Check, repair and check one dataset."""
    _, before = kata("check", str(root), "--json")
    status, repaired = kata("repair", str(root), f"--out={out}", "--json")
    after = repaired["left"] if isinstance(repaired, dict) else repaired
    changes = repaired["changes"] if isinstance(repaired, dict) else []
    kinds = sorted({each["kind"] for each in changes})
    left = len(repaired["undecided"]) if isinstance(repaired, dict) else 0
    routes = {}
    if out.exists():
        routes["LeRobot"] = str(out)
        info = json.loads((out / "meta/info.json").read_text(encoding="utf-8"))
        if info["codebase_version"] != "v3.0":
            converted = out.with_name(f"{out.name}-converted")
            if kata("convert", str(out), f"--out={converted}")[0] == 0:
                routes["kata"] = str(converted)
    return {
        "name": root.name,
        "pixels": pixels(root),
        "before": counted(before),
        "after": counted(after),
        "status": status,
        "changed": kinds,
        "undecided": left,
        "routes": routes,
    }


def main() -> int:
    """Repair all, let LeRobot open all, print and keep what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", type=Path, help="python with LeRobot 0.6.1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="kata-odd-"))
    roots = sorted({path.parents[1] for path in options.folder.glob("**/meta/info.json")})
    rows = [examine(root, out / root.name) for root in roots]
    copies = [path for row in rows for path in row["routes"].values()]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    answers: dict[str, dict[str, Any]] = {}
    if options.peer:
        command = [str(options.peer), str(HERE / "lerobot_opens.py"), *copies]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        for found in map(json.loads, done.stdout.splitlines()):
            answers[found["root"]] = found
    for row in rows:
        routes = row.pop("routes")
        row["copies"] = sorted(routes)
        row["opens"] = {}
        for route, path in routes.items() if options.peer else ():
            row["opens"][route] = answers.get(path, {"error": "no answer"})
        said = [
            f"{route}: {found.get('error') or str(found['frames']) + ' frames'}"
            for route, found in row["opens"].items()
        ]
        heads = f"{row['name']:<14} {row['before']:>8} -> {row['after']:>8}"
        print(f"{heads}  {row['pixels']}; {'; '.join(said)}  [{', '.join(row['changed'])}]")
    for kind in ("equal", "refused", "unlike", "poor"):
        print(f"frames {kind}: {sum(row['pixels'].startswith(kind) for row in rows)}")
    print(f"{len(rows)} datasets, {sum(bool(row['copies']) for row in rows)} copies")
    print(f"without findings: {sum(row['after'] == '0/0' for row in rows)}")
    ways = (("LeRobot", "as it is or by its own converter"), ("kata", "after convert"))
    for route, how in ways if options.peer else ():
        opened = sum("frames" in row["opens"].get(route, {}) for row in rows)
        print(f"LeRobot opens {how}: {opened}")
    if options.result:
        options.result.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
