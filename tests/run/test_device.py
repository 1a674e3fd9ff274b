"""Devices are refused without torch where their driver is absent, and left to torch elsewhere."""

import ctypes
import dataclasses

import pytest

from kata.errors import ConfigError
from kata.run import device as device_module
from kata.run import resolve_run
from kata.run.device import check_device


@pytest.fixture
def run(tmp_path):
    args = ["--policy.type=act", "--dataset.repo_id=me/x", f"--dataset.root={tmp_path}"]
    return resolve_run(args, 1, {})[0]


def on(run, device):
    return dataclasses.replace(run, policy=dataclasses.replace(run.policy, device=device))


def loads(name):
    return name


def fails(name):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("platform", "library", "device", "is_refused"),
    [
        ("linux", fails, "cuda", True),
        ("linux", fails, "cuda:1", True),
        ("linux", loads, "cuda:1", False),
        ("linux", fails, "cpu", False),
        ("linux", fails, None, False),
        ("linux", loads, "mps", True),
        ("darwin", fails, "mps", False),
        ("darwin", loads, "cuda", True),
        ("win32", loads, "cuda", False),
    ],
)
def test_a_device_without_a_driver_is_refused(
    run, tmp_path, monkeypatch, platform, library, device, is_refused
):
    monkeypatch.setattr(device_module.sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(device_module, "_ROCM", tmp_path / "kfd")
    if not is_refused:
        check_device(on(run, device))
        return
    with pytest.raises(ConfigError) as caught:
        check_device(on(run, device))
    assert f"policy.device={device}: not on this machine" in str(caught.value)


def test_amd_gpus_are_cuda_too(run, tmp_path, monkeypatch):
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(ctypes, "CDLL", fails)
    monkeypatch.setattr(device_module, "_ROCM", tmp_path / "kfd")
    check_device(on(run, "cuda"))
