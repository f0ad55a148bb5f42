"""Connecting the ranks: on one machine they use a store whose port the system chooses, so that it is always free."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.errors import RunError
from bench.evidence.reading import attempt
from bench.options import Options
from bench.parallel import node_coordination, observed
from bench.rank_and_device import Place

_HOST = "127.0.0.1"


@contextlib.contextmanager
def join_group(place: Place, folder: str, options: Options, meet: dict[str, Any] | None = None) -> Iterator[Place]:
    """Join the process group as rank ``place.rank``, yield the Place in it, and leave it at the end.

    ``meet`` is the meeting point for ranks of several nodes (``node_coordination.Node.facts_for_ranks``). A collective
    that waits longer than ``collective_timeout_s`` fails in the waiting ranks.
    """
    import torch.distributed as dist

    rank, world = place.rank, place.world
    backend = "nccl" if place.device.name == "cuda" else "gloo"
    limit = datetime.timedelta(seconds=options["collective_timeout_s"])
    store = _store_of_nodes(rank, world, meet, limit) if meet else _store(rank, world, folder, options["port"], limit)
    agree_on_the_world(store, rank, world, limit)
    interface = _set_gloo_interface(store, meet) if backend == "gloo" else None
    nccl_log = os.path.join(folder, f"nccl-{rank}.log") if backend == "nccl" else None
    os.environ.update(observed.nccl_log_variables(nccl_log) if nccl_log else {})
    connections_before = attempt(observed.connections)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    lazy = observed.is_lazy(connections_before, attempt(observed.connections), world) if backend == "gloo" else None
    joined_place = replace(place, backend=backend, interface=interface, lazy=lazy, nccl_words=nccl_log)
    joined_place.barrier()
    yield joined_place
    # Not after an exception: leaving would wait for peers that are gone, and hide the error.
    joined_place.barrier()
    dist.destroy_process_group()


def agree_on_the_world(store: Any, rank: int, world: int, limit: datetime.timedelta) -> None:
    """Check that all ranks have joined with the same number of processes, so that no collective waits forever.

    Raises RunError with the rank that has another number, or the ranks that did not join within ``limit``.
    """
    own_world = f"{world} processes (rank {rank})"
    first_world = store.compare_set("envmatrix/world", "", own_world).decode()
    if first_world.partition(" ")[0] != str(world):
        store.set(
            "envmatrix/verdict", f"the ranks were given different numbers of processes: {first_world} and {own_world}"
        )
    store.set(f"envmatrix/here/{rank}", "")
    if store.add("envmatrix/count", 1) == world:
        store.compare_set("envmatrix/verdict", "", "all are here")
    try:
        store.wait(["envmatrix/verdict"], limit)
    except (RuntimeError, OSError) as error:
        missing_ranks = [str(other) for other in range(world) if not store.check([f"envmatrix/here/{other}"])]
        raise RunError(
            f"Timed out waiting {limit.total_seconds():g} s for rank {', '.join(missing_ranks)} of {world} to join"
        ) from error
    verdict = store.get("envmatrix/verdict").decode()
    if verdict != "all are here":
        raise RunError(f"{verdict}: start all with the same --processes and --nodes")


def _set_gloo_interface(store: Any, meet: dict[str, Any] | None) -> str | None:
    """Set Gloo's interface: the one that reaches the other nodes, or loopback if there is one node."""
    name = node_coordination.interface(store, meet) if meet else "lo"
    return os.environ.setdefault("GLOO_SOCKET_IFNAME", name) if name else os.environ.get("GLOO_SOCKET_IFNAME")


def _store_of_nodes(rank: int, world: int, meet: dict[str, Any], limit: datetime.timedelta) -> Any:
    from torch.distributed import TCPStore

    try:
        return TCPStore(meet["host"], meet["port"], world, rank == 0, limit, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        message = " ".join(str(error).split())[:200]
        raise RunError(f"the nodes cannot meet at {meet['host']}:{meet['port']}: {message}") from error


def _store(rank: int, world: int, folder: str, port: int, limit: datetime.timedelta) -> Any:
    from torch.distributed import TCPStore

    port_file = os.path.join(folder, "port")
    if rank:
        return TCPStore(_HOST, _wait_for(port_file, limit), world, False, limit, wait_for_workers=False)
    try:
        store = TCPStore(_HOST, port, world, True, limit, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        raise RunError(
            f"port {port} of {_HOST} cannot be had ({' '.join(str(error).split())[:200]}): "
            "choose another --port, or 0 to let the system choose"
        ) from error
    with open(port_file + ".new", "w", encoding="ascii") as file:
        file.write(str(store.port))
    os.replace(port_file + ".new", port_file)
    return store


def _wait_for(path: str, limit: datetime.timedelta) -> int:
    until = time.monotonic() + limit.total_seconds()
    while not os.path.exists(path):
        if time.monotonic() > until:
            raise RunError(f"Timed out waiting {limit.total_seconds():.0f} s for rank 0 to open its store")
        time.sleep(0.01)
    with open(path, encoding="ascii") as file:
        return int(file.read())
