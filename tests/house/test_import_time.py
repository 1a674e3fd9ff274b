"""`kata --help` answers at once, and torch is imported by nothing that does not compute."""

import resource
import subprocess
import sys

import pytest


def seconds(*command: str) -> float:
    """CPU seconds of the fastest of five processes."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


@pytest.mark.parametrize(
    "verb",
    [[], ["train"], ["eval"], ["data", "stats"], ["launch"], ["bench", "data"], ["quickstart"]],
    ids=" ".join,
)
def test_help_is_instant(verb):
    """0.3 s, measured against the interpreter's own start: a busy machine does not fail it."""
    bare = seconds("-c", "pass")
    assert seconds("-m", "kata", *verb, "--help") - bare < max(0.28, 14 * bare)


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


@pytest.mark.parametrize("module", LIGHT)
def test_no_torch_in_the_light_core(module):
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


HEAVY = ("torch", "numpy", "pyarrow", "av", "yaml", "rich", "huggingface_hub")


@pytest.mark.parametrize(
    "verb",
    [
        ["train"],
        ["train", "--policy.type=vqbet"],
        ["eval"],
        ["data", "split"],
        ["bench", "data"],
        ["bench", "scale"],
        ["launch"],
        ["checkpoint", "prune"],
        ["doctor"],
        ["quickstart"],
    ],
)
def test_help_imports_nothing_that_computes(verb):
    code = (
        f"import sys\nfrom kata.cli import main\nmain([*{verb}, '--help=all'])\n"
        f"assert not set({HEAVY}) & set(sys.modules)"
    )
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


@pytest.mark.parametrize("flag", WRONG)
def test_a_wrong_option_is_refused_before_torch_is_imported(flag, tiny_dataset):
    args = [
        "train",
        "--policy.type=act",
        "--dataset.repo_id=x",
        f"--dataset.root={tiny_dataset}",
        flag,
    ]
    code = (
        f"import sys\nfrom kata.cli import main\nassert main({args}) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "remedy:" in done.stderr
