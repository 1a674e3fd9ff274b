"""The names of the options of LeRobot's policies are those that kata's tests hold: `python
tools/peer/check_fields.py`.

Runs where LeRobot is installed.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

from lerobot.configs.policies import PreTrainedConfig

KEPT = Path(__file__).parents[2] / "tests/policies/lerobot_fields.json"


def main() -> int:
    failed = 0
    for name, kept in json.loads(KEPT.read_text()).items():
        importlib.import_module(f"lerobot.policies.{name}.configuration_{name}")
        fields = dataclasses.fields(PreTrainedConfig.get_choice_class(name))
        is_same = sorted(field.name for field in fields) == kept
        failed += not is_same
        print(f"{'PASS' if is_same else 'FAIL'} options of {name}: {len(fields)}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
