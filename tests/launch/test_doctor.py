"""`kata doctor` on machines as they are and as they might be."""

import copy
import json
import subprocess
import sys

import pytest

from kata.cli import main
from kata.launch.doctor import bandwidth, command, probe
from kata.launch.doctor.checks import DRIVER_OF_CUDA, findings
from kata.launch.doctor.probe import links

SMI = """\
#!/bin/bash
case "$*" in
    -L) echo "GPU 0: NVIDIA A100 (UUID: GPU-aa)"; echo "GPU 1: NVIDIA A100 (UUID: GPU-bb)" ;;
    "topo -m") printf '\\tGPU0\\tGPU1\\tNIC0\\tCPU Affinity\\n'
        printf 'GPU0\\t X \\tNV12\\tPXB\\t0-31\\nGPU1\\tNV12\\t X \\tPXB\\t0-31\\nNIC0\\tPXB\\tPXB\\t X \\n' ;;
    *) echo "0, NVIDIA A100-SXM4-80GB, 81920, 10, 580.65.06, 8.0"
       echo "1, NVIDIA A100-SXM4-80GB, 81920, 70000, 580.65.06, 8.0" ;;
esac
"""  # noqa: E501


@pytest.fixture
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(bandwidth, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(bandwidth, "LOOPBACK_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def two_gpus(monkeypatch, tmp_path, quick):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_without_a_gpu_it_is_quick_and_needs_no_torch(quick, tmp_path):
    code = "import sys\nfrom kata.cli import main\nstatus = main(['doctor', '--json'])\n"
    code += "assert 'torch' not in sys.modules\nsys.exit(status)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"facts", "findings"}
    assert found["facts"]["versions"]["torch"].startswith("2.")
    assert found["facts"]["decoders"]["av1"]
    assert found["facts"]["disk"]["write_bytes_per_s"] > 0
    assert not list(tmp_path.iterdir())


def test_gpus_and_how_they_are_joined(two_gpus, capsys):
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert (
        "GPU 0          NVIDIA A100-SXM4-80GB, 10.0 MiB of 80.0 GiB taken, compute 8.0, driver "
        "580.65.06\n" in out
    )
    assert "links          0-1 NV12\n" in out
    assert "wrong: GPU 1: 68.4 GiB are taken by others\n  remedy: end them" in out


def test_a_machine_that_is_well(quick, monkeypatch, capsys):
    monkeypatch.setattr(command, "findings", lambda found: [])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("\nnothing is wrong\n")


def test_links_of_three_gpus():
    rows = [
        "\tGPU0\tGPU1\tGPU2",
        "GPU0\t X \tNV4\tSYS",
        "GPU1\tNV4\t X \tPHB",
        "GPU2\tSYS\tPHB\t X ",
    ]
    assert links("\n".join(rows)) == {"0-1": "NV4", "0-2": "SYS", "1-2": "PHB"}
    assert links(None) == {}


GPU = {
    "index": "0",
    "name": "A100",
    "memory_bytes": 80 << 30,
    "used_bytes": 0,
    "driver_version": "580.1",
}
WELL = {
    "versions": {"torch": "2.11.0"},
    "cuda_of_torch": "13.0",
    "nccl": "2.28.9",
    "gpus": [GPU, {**GPU, "index": "1"}],
    "device_files": 2,
    "visible_gpus": ["0", "1"],
    "links": {"0-1": "NV12"},
    "cores": 16,
    "cores_of_cgroup": None,
    "memory": {"total_bytes": 64 << 30, "available_bytes": 60 << 30},
    "shared_memory_bytes": 32 << 30,
    "open_files": 65536,
    "decoders": {"h264": ["h264"], "hevc": ["hevc"], "av1": ["libdav1d"]},
    "environment": {},
    "disk": {
        "folder": "/data",
        "free_bytes": 1 << 40,
        "write_bytes_per_s": 1e9,
        "read_bytes_per_s": 1e9,
    },
}


def test_nothing_is_made_up():
    assert findings(WELL) == []
    assert sorted(DRIVER_OF_CUDA) == [11, 12, 13]


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        ("versions.torch", None, "torch is not installed"),
        ("versions.torch", "2.9.1+cu128", "torch 2.9.1+cu128 is too old"),
        ("cuda_of_torch", None, "this torch is a CPU build"),
        ("gpus.0.driver_version", "570.86", "driver 570.86 is too old for torch's CUDA 13.0"),
        ("gpus", [], "2 GPU device files, but nvidia-smi does not answer"),
        ("gpus.1.used_bytes", 9 << 30, "GPU 1: 9.0 GiB are taken"),
        ("links.0-1", "SYS", "GPUs 0-1 are joined across CPU sockets"),
        ("nccl", None, "no NCCL package"),
        ("environment.NCCL_P2P_DISABLE", "1", "NCCL_P2P_DISABLE=1"),
        ("shared_memory_bytes", 64 << 20, "/dev/shm has 64.0 MiB free"),
        ("decoders.av1", [], "PyAV cannot decode av1"),
        ("memory.available_bytes", 1 << 30, "1.0 GiB of memory are free"),
        ("cores_of_cgroup", 2.0, "the container may use 2 of 16 cores"),
        ("environment.OMP_NUM_THREADS", "32", "OMP_NUM_THREADS=32 on 16 cores"),
        ("open_files", 256, "at most 256 open files"),
        ("disk.free_bytes", 1 << 30, "/data: 1.0 GiB free"),
        ("disk.error", "Read-only file system", "/data cannot be written: Read-only file system"),
        ("disk.read_bytes_per_s", 1e6, "/data: reads 976.6 KiB per second"),
    ],
)
def test_each_thing_that_is_wrong_is_found_with_a_remedy(place, value, what):
    facts = copy.deepcopy(WELL)
    *way, last = place.split(".")
    inner = facts
    for name in way:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[last] = value
    (finding,) = findings(facts)
    assert finding.what.startswith(what)
    assert finding.remedy


@pytest.mark.parametrize(
    ("stated", "visible", "what"),
    [
        ("", [], "CUDA_VISIBLE_DEVICES='' hides all 2 GPUs"),
        ("0,2", ["0", "2"], "CUDA_VISIBLE_DEVICES=0,2 names GPU 2"),
    ],
)
def test_what_cuda_visible_devices_hides(stated, visible, what):
    changed = {**WELL, "environment": {"CUDA_VISIBLE_DEVICES": stated}, "visible_gpus": visible}
    (finding,) = findings(changed)
    assert finding.what.startswith(what)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refused(*args, **named):
        raise OSError("Read-only file system")

    monkeypatch.setattr(bandwidth.tempfile, "NamedTemporaryFile", refused)
    found = bandwidth.disk(tmp_path / "not" / "there")
    assert (found["folder"], found["error"]) == (str(tmp_path), "Read-only file system")


def test_unknown_options_are_refused(capsys):
    assert main(["doctor", "--jsno"]) == 2
    assert "did you mean --json" in capsys.readouterr().err
    assert probe.version("no-such-package") is None
