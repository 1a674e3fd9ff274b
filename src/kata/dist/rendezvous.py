"""Rendezvous: ranks meet at a store of the launcher or of rank 0, again after each restart."""

from __future__ import annotations

import os
import socket
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]: documented so
from torch.distributed.rendezvous import rendezvous

from kata.dist.world import World
from kata.errors import ConfigError

LOOK_S = 0.02
"""Seconds between two looks for the other ranks."""

NAMED_WITHIN_S = 60.0
"""Seconds for a new machine's name to become known; some networks learn it after the start."""


def join_rendezvous(world: World, limit_s: float) -> Store:
    """Return a store for the ranks of this start alone, once all ranks are there.

    Raises: ConfigError if rank 0 cannot be reached within `limit_s`, its machine's name leads
        nowhere, or other ranks are missing.
    """
    host, _, port = world.address.rpartition(":")
    _refuse_unknown_name(world, host, min(limit_s, NAMED_WITHIN_S))
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
            rule=f"rank 0 serves that address, and all ranks reach it within {limit_s:g} s "
            "(dist_timeout)",
            remedy="choose another port (torchrun --master-port, accelerate --main_process_port, "
            "MASTER_PORT)"
            if taken
            else "look whether rank 0 runs, and whether its machine lets the others through to "
            "that port",
        ) from error
    return PrefixStore(f"start {agree_on_start(store, world.rank, world.size, limit_s)}", store)


def _refuse_unknown_name(world: World, host: str, limit_s: float) -> None:
    """Raise ConfigError if the name of rank 0's machine has no address within `limit_s`.

    torch would warn, and try again until dist_timeout is over.
    """
    until_s = time.monotonic() + limit_s
    while True:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            if time.monotonic() > until_s:
                raise ConfigError(
                    f"rank {world.rank} of {world.size} does not meet the others at "
                    f"{world.address}: {host} has no address here ({error.strerror})",
                    rule="every machine knows that of rank 0 by name",
                    remedy="set MASTER_ADDR to an address of the machine of rank 0, such as "
                    "that of `hostname -I` on it",
                ) from error
            time.sleep(1.0)
        else:
            return


def agree_on_start(store: Store, rank: int, size: int, limit_s: float) -> str:
    """Return the name of this start, which rank 0 gives to all other ranks that are there now.

    torchrun restarts ranks at the store of the failed ones, which still holds their addresses and
    failures. The count of restarts does not identify a start, since each machine counts by itself.
    So every process chooses a unique name: rank 0 answers each name, and waits for each reply.

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
    """Take the name from rank 0; if rank 0 is replaced meanwhile, take the new one."""
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
