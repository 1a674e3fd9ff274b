"""Packages import only what lies below them; the contracts stand in pyproject.toml."""

import importlib
import subprocess
import sys
from pathlib import Path

from kata.policies import POLICIES

ROOT = Path(__file__).parents[2]


def test_the_layers_hold():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_policy_in_the_table_can_be_imported():
    for name, module in POLICIES.items():
        assert importlib.import_module(f"{module}.config").Config.type_name == name
        assert importlib.import_module(f"{module}.model").Policy


def test_models_and_steps_need_no_reader_and_no_flag_parser():
    """They run on machines that have torch but neither PyAV nor pyarrow."""
    code = (
        "import sys; sys.modules.update(av=None, yaml=None, pyarrow=None, rich=None)\n"
        "import kata.policies.act.model, kata.processors, kata.optim.build, kata.policies.load, "
        "kata.policies.pipelines\n"
        "import kata.update.state, kata.update.step"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
