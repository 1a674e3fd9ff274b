"""`kata --help` answers at once, and torch is imported by nothing that does not compute."""

import resource
import subprocess
import sys

import pytest


def seconds(*command: str) -> float:
    """CPU seconds of the fastest of three processes."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(3))


@pytest.fixture(scope="module")
def bare_s() -> float:
    return seconds("-c", "pass")


@pytest.mark.parametrize(
    "verb",
    [[], ["train"], ["eval"], ["data", "stats"], ["launch"], ["bench", "data"], ["quickstart"]],
    ids=" ".join,
)
def test_help_is_instant(verb, bare_s):
    """0.3 s, measured against the interpreter's own start: a busy machine does not fail it."""
    assert seconds("-m", "kata", *verb, "--help") - bare_s < max(0.28, 14 * bare_s)


LIGHT = [
    "kata.cli",
    "kata.config",
    "kata.spec",
    "kata.data",
    "kata.eval",
    "kata.run",
    "kata.optim.config",
    "kata.policies.act.config",
]


def test_no_torch_in_the_light_core():
    """One process imports them in turn, and names the first that brings torch."""
    code = f"""
import importlib, sys
for module in {LIGHT}:
    importlib.import_module(module)
    assert "torch" not in sys.modules, module
"""
    subprocess.run([sys.executable, "-c", code], check=True)


HEAVY = ("torch", "numpy", "pyarrow", "av", "yaml", "rich", "huggingface_hub")


VERBS = [
    ["train"],
    ["train", "--policy.type=vqbet"],
    ["eval"],
    ["rl", "train"],
    ["data", "split"],
    ["bench", "data"],
    ["bench", "scale"],
    ["launch"],
    ["checkpoint", "prune"],
    ["doctor"],
    ["quickstart"],
]


def test_help_imports_nothing_that_computes():
    """One process shows the help of each verb in turn."""
    code = f"""
import sys
from kata.cli import main
for verb in {VERBS}:
    main([*verb, "--help=all"])
    assert not set({HEAVY}) & set(sys.modules), verb
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


WRONG = [
    "--stpes=3",
    "--policy.device=gpu",
    "--policy.device=cuda:0" if sys.platform == "darwin" else "--policy.device=mps",
    "--dataset.root=/nowhere/at/all",
    "--policy.path=/nowhere/at/all",
    "--config=/nowhere.yaml",
    '--rename_map={"observation.images.tpo": "observation.images.top"}',
    '--dataset.concat={"action": ["action", "observation.stat"]}',
    "--policy.repo_id=a/b/c",
    "--output_dir=/proc/x/y",
    "--output_dir=/dev/null/run",
]


def test_a_wrong_option_is_refused_before_torch_is_imported(tiny_dataset):
    """One process refuses them in turn."""
    args = ["train", "--policy.type=act", "--dataset.repo_id=x", f"--dataset.root={tiny_dataset}"]
    code = f"""
import sys
from kata.cli import main
for flag in {WRONG}:
    assert main([*{args}, flag]) == 2, flag
    assert "torch" not in sys.modules, flag
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.count("remedy:") == len(WRONG)
