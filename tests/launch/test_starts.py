"""The same run under each way of starting it: Accelerate's flags and config files, and
torchrun's restarts.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kata.launch.local import free_port
from tests.conftest import TINY_ACT
from tests.train.test_kill import saved

pytestmark = pytest.mark.long
WAIT_S = 500.0

CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
num_machines: 1
num_processes: 2
machine_rank: 0
mixed_precision: '{precision}'
use_cpu: false
debug: false
{more}
"""
CRASH = """
import os, sys
from kata.cli import main
from tests.dist.scenes import train_until
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
sys.exit(train_until(25, "SIGKILL", 1, sys.argv[1:]) if first else main(["train", *sys.argv[1:]]))
"""


@pytest.fixture
def start(vector_dataset, tmp_path):
    """Run a launcher with `kata train` or a script below it, and return what it says."""

    def run(launcher, name, *options, below=("-m", "kata", "train"), status=0):
        data = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors"]
        plain = [
            "--policy.dropout=0",
            "--optimizer.type=sgd",
            "--optimizer.lr=0.01",
            "--batch_size=3",
            "--steps=20",
        ]
        train = [*data, *TINY_ACT, *plain, f"--output_dir={tmp_path / name}", *options]
        here = str(Path(__file__).parents[2])  # a script finds the scenes of tests/dist there
        env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": here}
        command = [sys.executable, "-m", *launcher, *below, *train]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=WAIT_S, env=env
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def torchrun(*more):
    return ["torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", *more]


def accelerate(*more):
    return ["accelerate.commands.launch", f"--main_process_port={free_port()}", *more]


def close(one, other):
    ours, theirs = (
        load_file(run / "checkpoints/last/pretrained_model/model.safetensors")
        for run in (one, other)
    )
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


def test_accelerate_by_flags_and_by_file_is_torchrun(start, tmp_path):
    start(torchrun(), "torchrun")
    flags = (
        "--multi_gpu",
        "--num_processes=2",
        "--mixed_precision=no",
        "--num_machines=1",
        "--dynamo_backend=no",
    )
    said = start(accelerate(*flags), "flags")
    assert re.search(r"engine +accelerate", said)
    close(tmp_path / "torchrun", tmp_path / "flags")
    config = tmp_path / "multi.yaml"
    config.write_text(CONFIG.format(kind="MULTI_GPU", precision="bf16", more=""))
    said = start(accelerate(f"--config_file={config}"), "file", "--policy.use_amp=true")
    assert (
        "taken from accelerate launch: accelerator.mixed_precision=bf16 "
        "(ACCELERATE_MIXED_PRECISION)" in said
    )
    assert "policy.use_amp does not count" in said
    said = start(
        accelerate(f"--config_file={config}"),
        "other",
        "--accelerator.mixed_precision=fp16",
        status=1,
    )
    assert (
        "accelerator.mixed_precision=fp16, and ACCELERATE_MIXED_PRECISION=bf16 from accelerate "
        "launch" in said
    )


FSDP = """
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: NO_WRAP
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_offload_params: false
  fsdp_cpu_ram_efficient_loading: true
  fsdp_activation_checkpointing: true
"""
"""As `accelerate config` writes it."""


def test_accelerate_shards_by_flags_and_by_file_as_torchrun_does(start, tmp_path):
    start(torchrun(), "torchrun", "--parallelism.dp_shard=2")
    flags = (
        "--use_fsdp",
        "--fsdp_version=2",
        "--num_processes=2",
        "--mixed_precision=no",
        "--num_machines=1",
    )
    config = tmp_path / "fsdp.yaml"
    config.write_text(CONFIG.format(kind="FSDP", precision="no", more=FSDP))
    for name, options in (
        ("flags", (*flags, "--dynamo_backend=no")),
        ("file", (f"--config_file={config}",)),
    ):
        said = start(accelerate(*options), name)
        assert re.search(r"engine +accelerate", said)
        assert "1 copy in 2 shards each (FSDP)" in said
        assert "taken from accelerate launch: parallelism.dp_shard=-1 (ACCELERATE_USE_FSDP)" in said
        close(tmp_path / "torchrun", tmp_path / name)
    assert (
        "taken from accelerate launch: gradient_checkpointing=True (FSDP_ACTIVATION_CHECKPOINTING)"
        in said
    )
    assert (
        "without effect here, from accelerate launch: FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT"
        in said
    )


def test_torchrun_restarts_from_the_last_checkpoint(start, tmp_path):
    """A rank is killed in the middle: torchrun starts all of them again, with the same command."""
    script = tmp_path / "crash.py"
    script.write_text(CRASH)
    options = ("--steps=40", "--save_freq=10", "--dist_timeout=60s")
    start(torchrun(), "straight", *options)
    said = start(
        torchrun("--max-restarts=1"), "again", *options, "--resume=true", below=(str(script),)
    )
    assert re.search(r"continuing from .*0000[12]0", said)
    last = saved(tmp_path / "straight/checkpoints/000040")
    assert last
    assert saved(tmp_path / "again/checkpoints/000040") == last
