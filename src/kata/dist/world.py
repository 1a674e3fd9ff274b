"""The rank of this process and the number of ranks, read from the launcher's variables. No torch.

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, … (torchrun, accelerate launch, kata launch and others)
SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, … (srun)
neither: one rank
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kata.errors import ConfigError

FIRST_PORT, PORTS = 20_000, 10_000
"""Range of ports in which ranks started by srun meet; the job's number chooses one."""


@dataclass(frozen=True)
class World:
    """The place of this process among the ranks.

    Attributes:
        rank: from 0 to size - 1.
        size: the number of ranks.
        local_rank: the number of this rank on its machine.
        address: 'host:port' of rank 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = ""

    @property
    def is_first(self) -> bool:
        """Return True for rank 0, which writes, logs and saves."""
        return self.rank == 0


def read_world(environment: Mapping[str, str], *, must_meet: bool = True) -> World:
    """Return the world that these environment variables describe.

    Args:
        environment: the variables.
        must_meet: True wants an address at which several ranks meet.

    Raises: ConfigError for numbers that do not fit together, or without an address of rank 0.
    """
    if "RANK" in environment or int_of(environment, "WORLD_SIZE", 1) > 1:
        world = World(
            int_of(environment, "RANK", None),
            int_of(environment, "WORLD_SIZE", None),
            int_of(environment, "LOCAL_RANK", 0),
            _address(environment),
        )
    elif "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        size = int_of(environment, "SLURM_NTASKS", None)
        local = int_of(environment, "SLURM_LOCALID", 0)
        world = World(
            int_of(environment, "SLURM_PROCID", None), size, local, _slurm_address(environment)
        )
    else:
        return World()
    _check(world, must_meet)
    return world


def _check(world: World, must_meet: bool) -> None:
    if not 0 <= world.rank < world.size:
        raise ConfigError(
            f"RANK={world.rank} of WORLD_SIZE={world.size}",
            rule="ranks count from 0 to WORLD_SIZE - 1",
            remedy="start with torchrun, accelerate launch, srun or kata launch, which set both",
        )
    if must_meet and world.size > 1 and not world.address:
        raise ConfigError(
            f"MASTER_ADDR and MASTER_PORT: not set, for rank {world.rank} of {world.size}",
            rule="several ranks meet at an address of rank 0",
            remedy="start with torchrun, accelerate launch, srun or kata launch, or set "
            "MASTER_ADDR and MASTER_PORT",
        )


def int_of(environment: Mapping[str, str], name: str, default: int | None) -> int:
    """Return a whole number of the environment, or the default; ConfigError for neither."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        raise ConfigError(
            f"{name}={'' if text is None else text}: "
            f"{'not set' if text is None else 'no whole number'}",
            rule="a launcher sets RANK and WORLD_SIZE (srun: SLURM_PROCID and SLURM_NTASKS) as "
            "whole numbers",
            remedy=f"set {name}, or unset RANK and WORLD_SIZE to train with one process",
        )
    return int(text)


def _address(environment: Mapping[str, str]) -> str:
    if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
        return ""
    return f"{environment['MASTER_ADDR']}:{int_of(environment, 'MASTER_PORT', None)}"


def _slurm_address(environment: Mapping[str, str]) -> str:
    """Return MASTER_ADDR and MASTER_PORT, or else the step's first host and the job's port."""
    nodes = environment.get(
        "SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", "127.0.0.1")
    )
    job, step = int_of(environment, "SLURM_JOB_ID", 0), int_of(environment, "SLURM_STEP_ID", 0)
    host = environment.get("MASTER_ADDR", first_host(nodes))
    port = environment.get("MASTER_PORT", str(FIRST_PORT + (job * 31 + step) % PORTS))
    return f"{host}:{port}"


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's list: 'gpu[03-05,9],cpu1' -> 'gpu03'."""
    head = re.match(r"[^,\[]*(?:\[([^\],-]*)[^\]]*\][^,\[]*)?", nodes)
    assert head is not None
    return re.sub(r"\[[^\]]*\]", head[1] or "", head[0])
