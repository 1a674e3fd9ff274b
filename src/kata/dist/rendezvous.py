"""How ranks find each other: at the launcher's store or one that rank 0 serves, and anew whenever they are started."""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]: documented so
from torch.distributed.rendezvous import rendezvous

from kata.dist.world import World
from kata.errors import ConfigError

LOOK_S = 0.02
"""How often a rank looks for the others."""


def meet(world: World, limit_s: float) -> Store:
    """A store that holds nothing but what these ranks of this start write to it; returns once all are there.

    Raises: ConfigError where rank 0 cannot be met within `limit_s`, or other ranks do not come.
    """
    host, _, port = world.address.rpartition(":")
    os.environ.setdefault("MASTER_ADDR", host)
    os.environ.setdefault("MASTER_PORT", port)
    try:
        store, _, _ = next(
            rendezvous(
                "env://", rank=world.rank, world_size=world.size, timeout=timedelta(seconds=limit_s)
            )
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        taken = "EADDRINUSE" in str(error) or "address already in use" in str(error)
        raise ConfigError(
            f"rank {world.rank} of {world.size} does not meet the others at {world.address}: "
            + ("the port is taken" if taken else str(error).splitlines()[0]),
            rule=f"rank 0 serves that address, and all ranks reach it within {limit_s:g} s (dist_timeout)",
            remedy="choose another port (torchrun --master-port, accelerate --main_process_port, MASTER_PORT)"
            if taken
            else "look whether rank 0 runs, and whether its machine lets the others through to that port",
        ) from error
    return PrefixStore(f"start {begin(store, world.rank, world.size, limit_s)}", store)


def begin(store: Store, rank: int, size: int, limit_s: float) -> str:
    """The name of this start, which rank 0 gives to all others that are there now.

    torchrun lets ranks that it restarts meet at the store of those that failed, where addresses and failures of the
    dead still stand; how often each machine restarted does not tell starts apart, for each counts on its own.
    Here every process has a name of its own: rank 0 answers names, and is content once each rank has answered back.

    Raises: ConfigError after `limit_s`, naming the ranks that are missing.
    """
    until_s = time.monotonic() + limit_s
    return (
        _invite(store, size, until_s, limit_s)
        if rank == 0
        else _come(store, rank, until_s, limit_s)
    )


def _invite(store: Store, size: int, until_s: float, limit_s: float) -> str:
    name = uuid.uuid4().hex
    missing, invited = set(range(1, size)), dict[int, bytes]()
    while missing:
        for rank in sorted(missing):
            if store.check([f"here/{rank}"]) and (who := store.get(f"here/{rank}")) != invited.get(
                rank
            ):
                invited[rank] = who
                store.set(f"start of {who.decode()}", name)
            if store.check([f"came/{rank}/{name}"]):
                missing.discard(rank)
        if missing:
            _wait(until_s, f"ranks are missing: {', '.join(map(str, sorted(missing)))}", limit_s)
    store.set(f"all/{name}", "")
    return name


def _come(store: Store, rank: int, until_s: float, limit_s: float) -> str:
    """A rank 0 that dies meanwhile is followed by another, which gives another name."""
    who, name = uuid.uuid4().hex, ""
    store.set(f"here/{rank}", who)
    while not name or not store.check([f"all/{name}"]):
        if (
            store.check([f"start of {who}"])
            and (given := store.get(f"start of {who}").decode()) != name
        ):
            name = given
            store.set(f"came/{rank}/{name}", "")
        _wait(until_s, f"rank {rank} waits for rank 0, or for others that it waits for", limit_s)
    return name


def _wait(until_s: float, what: str, limit_s: float) -> None:
    if time.monotonic() > until_s:
        raise ConfigError(
            what,
            rule=f"all ranks meet within {limit_s:g} s (dist_timeout)",
            remedy="look at the output of those ranks, and whether every machine was started",
        )
    time.sleep(LOOK_S)
