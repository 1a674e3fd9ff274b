"""Opens datasets with LeRobot and reads every item; needs LeRobot 0.6.1, not kata.

    python tools/odd/lerobot_opens.py ROOT...

A dataset of format v2.1 goes through LeRobot's own converter first, in place. Prints one JSON
object a dataset.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

FIGURES = {"min", "max", "mean", "std", "count"}


def opened(root: Path) -> dict[str, Any]:
    """Read every item of a dataset and compare what it counts."""
    version = json.loads((root / "meta/info.json").read_text())["codebase_version"]
    if version == "v2.1":
        convert_dataset("local/odd", root=root, push_to_hub=False)
    data = LeRobotDataset("local/odd", root=root, video_backend="pyav")
    for place in range(len(data)):
        item = data[place]
        assert int(item["index"]) == place, f"item {place} has index {item['index']}"
        assert isinstance(item["task"], str), f"item {place} has the task {item['task']!r}"
    lacking = [key for key, stats in (data.meta.stats or {}).items() if set(stats) < FIGURES]
    assert data.meta.stats, "there are no statistics"
    assert not lacking, f"statistics lack figures of {lacking}"
    return {"frames": len(data), "episodes": data.num_episodes, "from": version}


def main() -> None:
    """Answer for every folder; whatever LeRobot raises is its answer."""
    for name in sys.argv[1:]:
        try:
            found = opened(Path(name))
        except Exception as error:  # noqa: BLE001 - LeRobot's answer, whatever it is
            found = {"error": f"{type(error).__name__}: {str(error)[:160]}"}
        print(json.dumps({"root": name, **found}), flush=True)


if __name__ == "__main__":
    main()
