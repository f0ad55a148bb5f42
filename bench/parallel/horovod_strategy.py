"""Horovod over its own Gloo: it is initialised among ranks that are already connected, and averages gradients."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bench.errors import RunError
from bench.options import Options
from bench.rank_and_device import Place

_HOST = "127.0.0.1"


@contextlib.contextmanager
def started(place: Place, options: Options) -> Iterator[None]:
    """Initialise Horovod among the ranks of ``place``, and shut it down at the end."""
    import horovod.torch as hvd

    with _rendezvous(place) as port:
        os.environ.update(_variables(place, port, options["collective_timeout_s"]))
        hvd.init()
        torch.distributed.barrier()  # from here on, no rank needs the server
    if (hvd.rank(), hvd.size()) != (place.rank, place.world):
        raise RunError(
            f"Horovod has made this rank {hvd.rank()} of {hvd.size()}, and it is rank {place.rank} of {place.world}"
        )
    yield
    # Not after an exception, because other ranks may be gone.
    hvd.shutdown()


@contextlib.contextmanager
def _rendezvous(place: Place) -> Iterator[int]:
    """Yield the port of the server through which Horovod's ranks connect; rank 0 runs it, on loopback only."""
    server: Any = None
    if place.rank == 0:
        # Not Horovod's own RendezvousServer.start, which listens on every interface.
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        server = RendezvousHTTPServer((_HOST, 0), RendezvousHandler, 0)
        server.init(get_host_assignments(parse_hosts(f"{_HOST}:{place.world}"), place.world, place.world))
        threading.Thread(target=server.serve_forever, daemon=True).start()
    port: list[int] = [server.server_address[1] if server else 0]
    torch.distributed.broadcast_object_list(port, src=0)
    yield port[0]
    if server:
        server.shutdown()
        server.server_close()


def _variables(place: Place, port: int, limit_s: int) -> dict[str, str]:
    """Return the variables that ``horovodrun --gloo`` sets for a rank, and the time limit of collectives."""
    return {
        "HOROVOD_HOSTNAME": _HOST,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.world),
        "HOROVOD_LOCAL_RANK": str(place.rank),
        "HOROVOD_LOCAL_SIZE": str(place.world),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _HOST,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": place.interface or "lo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(limit_s),
    }


def wrap(model: nn.Module) -> nn.Module:
    """Copy rank 0's weights to every rank."""
    import horovod.torch as hvd

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model


def optimizer(base_optimizer: torch.optim.Optimizer, model: nn.Module, parts: int) -> torch.optim.Optimizer:
    """Return an optimiser that averages gradients over the ranks once per ``parts`` backward passes."""
    import horovod.torch as hvd

    averaging: torch.optim.Optimizer = hvd.DistributedOptimizer(
        base_optimizer, model.named_parameters(), backward_passes_per_step=parts
    )
    # Horovod's version has no `set_to_none`. It only guards against unfinished exchanges, and no step leaves any.
    averaging.zero_grad = functools.partial(torch.optim.Optimizer.zero_grad, averaging)
    return averaging


@contextlib.contextmanager
def after_gradient_exchange(averaging: Any) -> Iterator[None]:
    """Wait for the gradient exchange first: gradients must not be unscaled while it runs."""
    averaging.synchronize()
    with averaging.skip_synchronize():
        yield
