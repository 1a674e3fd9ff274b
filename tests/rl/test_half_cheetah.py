"""A task of gymnasium's that takes 100,000 steps, beside Stable-Baselines3 in one run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/outcomes/half_cheetah.py"


@pytest.mark.long
def test_half_cheetah_is_learned_no_worse_than_by_stable_baselines3(tmp_path):
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("mujoco")
    out = tmp_path / "found.json"
    line = [sys.executable, str(SCRIPT), f"--work={tmp_path / 'runs'}", f"--out={out}"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert out.exists(), done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["kata"]["mean"] >= found["sb3"]["mean"] - found["sb3"]["interval"]
