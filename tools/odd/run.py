"""Repairs every dataset below a folder and opens the results with LeRobot.

    python tools/odd/run.py FOLDER --peer PYTHON [--out FOLDER] [--result FILE.json]

FOLDER holds one dataset a folder. PYTHON is that of an environment with LeRobot 0.6.1; kata is
importable here.
Each dataset is checked, repaired and checked again. What is of format v2.1 then becomes v3.0 twice,
by `kata data convert` and by LeRobot's own converter. LeRobot opens every result and reads every
item of it. One line per dataset, counts at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def kata(*arguments: str) -> tuple[int, Any]:
    """Run a verb of `kata data` with --json; returns status and answer, None where it refuses."""
    command = [sys.executable, "-m", "kata", "data", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else done.stderr


def counted(report: Any) -> str:
    """Return errors and warnings of a report, or that there is none."""
    return f"{report['errors']}/{report['warnings']}" if isinstance(report, dict) else "refused"


def examine(root: Path, out: Path) -> dict[str, Any]:
    """Check, repair and check one dataset."""
    _, before = kata("check", str(root))
    status, repaired = kata("repair", str(root), f"--out={out}")
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
            kata_data = [sys.executable, "-m", "kata", "data"]
            command = [*kata_data, "convert", str(out), f"--out={converted}"]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                routes["kata"] = str(converted)
    return {
        "name": root.name,
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
    parser.add_argument("--peer", type=Path, required=True, help="python with LeRobot 0.6.1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="kata-odd-"))
    roots = sorted({path.parents[1] for path in options.folder.glob("**/meta/info.json")})
    rows = [examine(root, out / root.name) for root in roots]
    copies = [path for row in rows for path in row["routes"].values()]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [str(options.peer), str(HERE / "lerobot_opens.py"), *copies]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    answers = {found["root"]: found for found in map(json.loads, done.stdout.splitlines())}
    for row in rows:
        row["opens"] = {
            route: answers.get(path, {"error": done.stderr[-200:]})
            for route, path in row["routes"].items()
        }
        said = [
            f"{route}: {found.get('error') or str(found['frames']) + ' frames'}"
            for route, found in row["opens"].items()
        ]
        heads = f"{row['name']:<14} {row['before']:>8} -> {row['after']:>8}"
        print(f"{heads}  {'; '.join(said) or 'no copy'}  [{', '.join(row['changed'])}]")
    print(f"{len(rows)} datasets, {sum(bool(row['routes']) for row in rows)} copies")
    print(f"without findings: {sum(row['after'] == '0/0' for row in rows)}")
    for route, how in (("LeRobot", "as it is or by its own converter"), ("kata", "after convert")):
        opened = sum("frames" in row["opens"].get(route, {}) for row in rows)
        print(f"LeRobot opens {how}: {opened}")
    if options.result:
        options.result.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
