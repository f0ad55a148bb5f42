"""How the ranks of one machine find each other: a store whose port the system chooses, so that none is ever taken."""

import contextlib
import datetime
import os
import time

from bench.errors import RunError
from bench.parallel import choices

_HOST = "127.0.0.1"


class Place:
    """Where this process stands among the others. Alone: rank 0 of 1, without a process group."""

    def __init__(self, rank=0, world=1, backend=None, interface=None):
        self.rank = rank
        self.world = world
        self.backend = backend
        self.interface = interface


@contextlib.contextmanager
def joined(rank, world, folder, options):
    """Join the process group and give this process's Place; leave it in the end.

    A collective that waits longer than ``collective_timeout_s`` is an error in the ranks that wait.
    """
    import torch.distributed as dist

    backend = "nccl" if choices.device(options) == "cuda" else "gloo"
    interface = _loopback_for_gloo() if backend == "gloo" else None
    limit = datetime.timedelta(seconds=options["collective_timeout_s"])
    store = _store(rank, world, folder, options["port"], limit)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    if dist.get_world_size() != world:
        raise RunError(f"{dist.get_world_size()} processes joined, but {world} were to")
    dist.barrier()
    yield Place(rank, world, backend, interface)
    # Not after an exception: leaving would wait for peers that are gone, and hide what happened.
    dist.barrier()
    dist.destroy_process_group()


def _loopback_for_gloo():
    """Keep Gloo on the loopback interface: a container without a network has no other."""
    return os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _store(rank, world, folder, port, limit):
    from torch.distributed import TCPStore

    told = os.path.join(folder, "port")
    if rank:
        return TCPStore(_HOST, _wait_for(told, limit), world, False, limit)
    try:
        store = TCPStore(_HOST, port, world, True, limit, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        raise RunError(
            f"port {port} of {_HOST} cannot be had ({' '.join(str(error).split())[:200]}): "
            "choose another --port, or 0 to let the system choose"
        ) from error
    with open(told + ".new", "w", encoding="ascii") as file:
        file.write(str(store.port))
    os.replace(told + ".new", told)
    return store


def _wait_for(path, limit):
    until = time.monotonic() + limit.total_seconds()
    while not os.path.exists(path):
        if time.monotonic() > until:
            raise RunError(f"Timed out waiting {limit.total_seconds():.0f} s for rank 0 to open its store")
        time.sleep(0.01)
    with open(path, encoding="ascii") as file:
        return int(file.read())
