"""Who a process is, from what launched it."""

import pytest

from kata.cli import main
from kata.dist.world import World, first_host, read_world
from kata.errors import ConfigError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29400",
}
SRUN = {
    "SLURM_STEP_ID": "2", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "100",  # noqa: E501
    "SLURM_STEP_NODELIST": "gpu[03-05,9]",
}  # fmt: skip


def test_each_launcher_is_understood():
    assert read_world({}) == World(0, 1, 0, "")
    assert read_world(TORCHRUN) == World(3, 8, 1, "node-1:29400")
    assert read_world(SRUN) == World(3, 4, 1, "gpu03:23102")
    assert (
        read_world({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"}).address
        == "10.0.0.1:5000"
    )
    assert read_world({**SRUN, **TORCHRUN}).size == 8, "torchrun inside a SLURM step"
    batch_script = {k: v for k, v in SRUN.items() if k != "SLURM_STEP_ID"}
    assert read_world(batch_script).size == 1, "the script of sbatch is no step of srun"
    assert read_world({"RANK": "0", "WORLD_SIZE": "1"}).size == 1


def test_the_flag_that_torch_distributed_launch_adds_is_no_verb(capsys):
    assert main(["--local-rank=0", "--version"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("r1n[7]-ib,x", "r1n7-ib"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 of WORLD_SIZE=8"),
        ({**TORCHRUN, "RANK": "one"}, "RANK=one: no whole number"),
        ({"WORLD_SIZE": "2"}, "RANK=: not set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_what_does_not_go_together_is_refused(environment, named):
    with pytest.raises(ConfigError) as caught:
        read_world(environment)
    assert named in caught.value.what
    assert caught.value.remedy
