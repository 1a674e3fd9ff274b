"""The examples run as they stand; LeRobot's script needs its environment (`make peer`)."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from tests.data.dataset_maker import make

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("data"), lengths=(12, 15))


def test_the_plain_loop_continues_where_it_was(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["plain_pytorch_loop.py", str(root)])
    for position in (160, 320):
        runpy.run_path(str(EXAMPLES / "plain_pytorch_loop.py"), run_name="__main__")
        assert f"at sample {position}" in capsys.readouterr().out
    assert torch.load("plain_pytorch_loop.pt")["loader"] == {"position": 320}


@pytest.mark.parametrize("options", [["--dummy"], []], ids=["dummy", "model"])
def test_every_rank_logs_its_throughput(
    options: list[str],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sizes = ["--batch_size=4", "--num_batches=5", "--log_every=3"]
    monkeypatch.setattr("sys.argv", ["streaming_multinode.py", str(root), *sizes, *options])
    runpy.run_path(str(EXAMPLES / "streaming_multinode.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 1 of 2: first batch after")
    assert [line.split(",")[0] for line in lines[1:]] == [
        "rank 1 of 2: batch 3",
        "rank 1 of 2: batch 5",
    ]
