"""`kata checkpoint`: what a run saved is listed, checked, pruned, exported and uploaded, without
torch.
"""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from kata.cli import main
from kata.train import train
from kata.train.checkpoint.folder import checkpoints
from kata.train.checkpoint.run_lock import FolderLock


@pytest.fixture(scope="module")
def trained_once(light_dataset, tmp_path_factory):
    from kata.run import resolve_run
    from tests.conftest import TINY_ACT

    folder = tmp_path_factory.mktemp("run") / "run"
    where = [
        f"--dataset.root={light_dataset}",
        "--dataset.repo_id=tests/light",
        f"--output_dir={folder}",
    ]
    more = ["--save_freq=2", "--dataset.eval_split=0.3", "--eval_steps=2", "--keep_best=3"]
    return train(resolve_run([*where, *TINY_ACT, *more])[0]).folder


@pytest.fixture
def run_folder(trained_once, tmp_path):
    shutil.copytree(trained_once, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def turn_a_bit(run_folder, step="000004"):
    path = run_folder / "checkpoints" / step / "pretrained_model" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_list_shows_steps_sizes_pointers_and_what_is_damaged(run_folder, capsys):
    (run_folder / "checkpoints/000002/training_state/training_step.json").unlink()
    assert main(["checkpoint", "list", str(run_folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["000002", "000004", "000006"]
    assert "training_step.json: absent" in lines[1]
    assert "last" in lines[3]
    assert "whole" in lines[3]
    assert sum("best-" in line for line in lines) >= 1


def test_verify_names_each_damaged_file_and_says_so_by_its_status(run_folder, capsys):
    assert main(["checkpoint", "verify", str(run_folder)]) == 0
    turn_a_bit(run_folder)
    assert main(["checkpoint", "verify", str(run_folder)]) == 1
    out = capsys.readouterr().out
    assert "000004: damaged\n  pretrained_model/model.safetensors: content changed (sha256)" in out
    assert main(["checkpoint", "verify", str(run_folder / "checkpoints" / "last")]) == 0
    assert main(["checkpoint", "verify", str(run_folder / "checkpoints" / "000004")]) == 1


def test_prune_removes_what_no_rule_keeps_and_a_dry_run_nothing(run_folder, capsys):
    home = run_folder / "checkpoints"
    assert main(["checkpoint", "prune", str(run_folder), "--keep_last=1", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would remove") == 2
    assert len(checkpoints(home)) == 3
    turn_a_bit(run_folder, "000006")
    assert main(["checkpoint", "prune", str(run_folder), "--keep_last=1"]) == 0
    assert [p.name for p in checkpoints(home)] == [
        "000004",
        "000006",
    ]  # the newest whole one, and what `last` names
    assert (home / "best" / "pretrained_model").is_dir()


def test_prune_leaves_a_run_at_work_alone(run_folder, capsys):
    with FolderLock(run_folder):
        command = [
            sys.executable,
            "-m",
            "kata",
            "checkpoint",
            "prune",
            str(run_folder),
            "--keep_last=1",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"in use by process {os.getpid()}" in done.stderr
    assert len(checkpoints(run_folder / "checkpoints")) == 3


def test_an_export_holds_what_acting_needs_and_nothing_else(run_folder, tmp_path):
    assert main(["checkpoint", "export", str(run_folder), f"--out={tmp_path}/out"]) == 0
    source = run_folder / "checkpoints/000006/pretrained_model"
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {
        p.name: p.read_bytes() for p in source.iterdir()
    }
    assert main(["checkpoint", "export", str(source), f"--out={tmp_path}/again"]) == 0


def test_an_export_takes_precisions_from_another_checkpoint(run_folder, tmp_path, capsys):
    import torch
    from safetensors.torch import load_file, save_file

    source = run_folder / "checkpoints/000006/pretrained_model"
    other = shutil.copytree(source, tmp_path / "other")
    exact = load_file(source / "model.safetensors")
    rounded, lacking, *rest = exact
    like = {name: exact[name] for name in rest} | {rounded: exact[rounded].bfloat16()}
    save_file(like, other / "model.safetensors")
    line = ["checkpoint", "export", str(run_folder), f"--dtypes_of={other}"]
    assert main([*line, f"--out={tmp_path}/out"]) == 0
    assert "in another precision than before: 1" in capsys.readouterr().out
    found = load_file(tmp_path / "out/model.safetensors")
    assert found.keys() == exact.keys()
    assert torch.equal(found[rounded], exact[rounded].bfloat16())
    assert found[lacking].dtype == torch.float32
    assert all(torch.equal(found[name], exact[name]) for name in rest)
    (other / "model.safetensors").unlink()
    assert main([*line, f"--out={tmp_path}/none"]) == 2
    assert "holds no model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


WRONG = [
    (["checkpoint", "lsit", "x"], "did you mean 'list'"),
    (["checkpoint", "list"], "no path"),
    (["checkpoint", "list", "{run}/nowhere"], "no checkpoints there"),
    (["checkpoint", "list", "{run}", "--keep_last=1"], "no such option"),
    (["checkpoint", "prune", "{run}"], "--keep_last=2"),
    (["checkpoint", "prune", "{run}", "--keep_last=-1"], "keep_last=-1"),
    (["checkpoint", "prune", "{run}", "--keep_lats=1"], "did you mean --keep_last"),
    (["checkpoint", "verify", "{run}/checkpoints/000005"], "no checkpoint there"),
    (["checkpoint", "export", "{run}"], "--out"),
    (["checkpoint", "export", "{run}", "--out={run}"], "exists already"),
    (["checkpoint", "export", "{run}", "--out={run}/x", "--dtypes_of={run}/nowhere"], "dtypes_of="),
    (["checkpoint", "push", "{run}"], "--repo_id"),
]


@pytest.mark.parametrize(("args", "words"), WRONG)
def test_what_cannot_be_done_is_refused_in_one_message(run_folder, capsys, args, words):
    assert main([arg.format(run=run_folder) for arg in args]) == 2
    assert words in capsys.readouterr().err


def test_a_damaged_checkpoint_is_neither_exported_nor_uploaded(run_folder, tmp_path, capsys):
    turn_a_bit(run_folder, "000006")
    for args in (
        ["export", str(run_folder), f"--out={tmp_path}/out"],
        ["push", str(run_folder), "--repo_id=a/b"],
    ):
        assert main(["checkpoint", *args]) == 2
        assert "content changed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_looking_after_checkpoints_needs_no_torch(run_folder):
    code = (
        "import sys\nfrom kata.cli import main\n"
        f"assert main(['checkpoint', 'list', {str(run_folder)!r}]) == 0\n"
        f"assert main(['checkpoint', 'verify', {str(run_folder)!r}]) == 0\n"
        f"assert main(['checkpoint', 'prune', {str(run_folder)!r}, '--keep_last=1']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_hub_out_of_reach_gives_one_message_and_keeps_everything(run_folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        place = f"http://127.0.0.1:{taken.getsockname()[1]}"
        environment = {**os.environ, "HF_ENDPOINT": place, "HF_TOKEN": "hf_secret_of_the_test"}
        command = [
            sys.executable,
            "-m",
            "kata",
            "checkpoint",
            "push",
            str(run_folder),
            "--repo_id=user/policy",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "not uploaded to user/policy" in done.stderr
    assert "kata checkpoint push" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hf_secret" not in done.stderr
    assert main(["checkpoint", "verify", str(run_folder)]) == 0
