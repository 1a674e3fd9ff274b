"""`kata --help` answers at once, and torch is imported by nothing that does not compute."""

import subprocess
import sys
import time

import pytest


def seconds(*command: str) -> float:
    def once() -> float:
        began_s = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        return time.perf_counter() - began_s

    return min(once() for _ in range(5))


def test_help_is_instant():
    """0.3 s, measured against the interpreter's own start, so that a busy machine does not fail it."""
    bare = seconds("-c", "pass")
    assert seconds("-m", "kata", "--help") - bare < max(0.3 - 0.02, 5 * bare)


LIGHT = [
    "kata.cli",
    "kata.config",
    "kata.spec",
    "kata.data",
    "kata.run",
    "kata.optim.config",
    "kata.policies.act.config",
]


@pytest.mark.parametrize("module", LIGHT)
def test_no_torch_in_the_light_core(module):
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("verb", ["'train'", "'bench', 'data'", "'bench', 'scale'"])
def test_listing_all_options_needs_no_torch(verb):
    code = f"import sys\nfrom kata.cli import main\nmain([{verb}, '--help'])\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_wrong_flag_is_refused_before_torch_is_imported():
    code = (
        "import sys\nfrom kata.cli import main\n"
        "assert main(['train', '--policy.type=act', '--dataset.repo_id=x', '--stpes=3']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
