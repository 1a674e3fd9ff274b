"""`kata launch -- train …`: which ranks run where, and what is refused."""

import os
import socket

import pytest

from kata.cli import main
from kata.errors import ConfigError
from kata.launch import gpus
from kata.launch.gpus import visible_gpus
from kata.launch.local import checked_port, chosen_gpus, free_port, rank_envs

LISTED = (
    "GPU 0: NVIDIA A100 (UUID: GPU-aa)\n  MIG 1g.10gb Device 0: (UUID: MIG-bb)\nGPU 1: "
    "NVIDIA A100 (UUID: GPU-cc)\n"
)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("2,5", ["2", "5"]), ("", []), ("-1", []), ("1,-1,2", ["1"]), (" GPU-aa ,3", ["GPU-aa", "3"])],
)
def test_cuda_visible_devices_is_respected(monkeypatch, stated, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", stated)
    assert visible_gpus() == expected


def test_nvidia_smi_or_the_device_files_are_counted(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "nvidia_smi", lambda *args: LISTED)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setattr(gpus, "nvidia_smi", lambda *args: None)
    monkeypatch.setattr(
        gpus.Path,
        "glob",
        lambda self, pattern: map(self.joinpath, ["nvidia0", "nvidiactl", "nvidia3"]),
    )
    assert visible_gpus() == ["0", "1"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, ["4", "5", "7"]), (2, ["4", "5"]), ([2], ["7"]), ([2, 0], ["7", "4"])],
)
def test_gpus_are_chosen_among_the_visible(asked, expected):
    assert chosen_gpus(asked, ["4", "5", "7"]) == expected


def test_ranks_find_themselves_as_under_torchrun(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    envs = rank_envs(2, ["4", "5"], 1234, "3")
    assert [(env["RANK"], env["LOCAL_RANK"]) for env in envs] == [("0", "0"), ("1", "1")]
    for env in envs:
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_RANK"]) == ("2", "2", "0")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "1234")
        assert (env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"]) == ("4,5", "3")
        assert env["PATH"] == os.environ["PATH"]
    assert rank_envs(2, None, 1234, "3")[0]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_run_without_two_dashes_in_front_is_named(capsys):
    assert main(["launch", "--ranks=2", "train", "--steps=1"]) == 2
    assert "kata launch --ranks=2 -- train" in capsys.readouterr().err


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port={port}"):
            checked_port(port)
    assert checked_port(port) == port
    assert free_port() > 1023


TRAIN = ["--", "train", "--policy.type=act", "--dataset.repo_id=a/b", "--policy.push_to_hub=false"]


@pytest.mark.parametrize(
    ("args", "value", "remedy"),
    [
        (["--gpus=0", *TRAIN], "gpus=0", "--ranks=2 starts two CPU ranks"),
        (["--gpus=2", "--ranks=2", *TRAIN], "ranks=2", "leave out one"),
        (["--gpus=3", *TRAIN], "gpus=3", "ask for fewer"),
        (["--gpus=[0,0]", *TRAIN], "gpus=[0, 0]", "for example"),
        (["--gpus=[0,2]", *TRAIN], "gpus=[0, 2]", "leave out 2"),
        (["--ranks=0", *TRAIN], "ranks=0", "--ranks=1"),
        (["--port=70000", "--ranks=1", *TRAIN], "port=70000", "--port=0"),
        (["--stop_after=soon", "--ranks=1", *TRAIN], "stop_after=soon", "--stop_after=2h"),
        (["--target=slrum", *TRAIN], "target=slrum", ""),
        (["--gpu=2", *TRAIN], "--gpu: an option of --target=slurm", "leave out --gpu"),
        (["--gpuss=2", *TRAIN], "--gpuss: no such option", "did you mean --gpus"),
        (["--ranks=2", "--", "trian"], "'trian' after --", "did you mean 'train'"),
        (["--ranks=2"], "'nothing' after --", "kata launch"),
        (
            ["--ranks=3", *TRAIN, "--global_batch_size=8"],
            "global_batch_size=8 on 3 ranks",
            "--global_batch_size=6 or",
        ),
        (["--ranks=2", *TRAIN, "--stpes=3"], "--stpes: no such option", "did you mean --steps"),
    ],
)
def test_bad_input_is_refused_before_a_rank_starts(monkeypatch, capsys, args, value, remedy):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert main(["launch", *args]) == 2
    err = capsys.readouterr().err
    assert f"kata: {value}" in err
    assert remedy in err


def test_a_machine_without_gpus_is_told_of_cpu_ranks(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["launch", *TRAIN]) == 2
    assert "--ranks=2 starts two CPU ranks" in capsys.readouterr().err


def test_help_lists_the_options(capsys):
    assert main(["launch", "--help"]) == 0
    assert "--stop_after" in capsys.readouterr().out
