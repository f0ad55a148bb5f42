"""Communication bandwidth: time one collective (such as all-reduce) over several sizes, and check its result."""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from bench import timed_loop
from bench.dataset_tensors import Batch
from bench.errors import RunError
from bench.options import Options
from bench.rank_and_device import Place
from bench.steps import Mark, no_mark

_DEFAULT_ROUNDS = 50
_FLOAT_BYTES = 4


class _Collective(NamedTuple):
    """A collective: how it runs, its bytes on the busiest link per byte of payload, and its result.

    The bytes are NVIDIA's definition of bus bandwidth (nccl-tests, doc/PERFORMANCE.md). The result is that of two
    numbers from each rank, all of them its rank + 1.
    """

    run: Callable[[Tensor, Place], object]
    bus_share: Callable[[int], float]
    result: Callable[[int], Tensor]


def _all_gather(buffer: Tensor, place: Place) -> None:
    part = buffer.view(place.world, -1)[place.rank].clone()
    dist.all_gather(list(buffer.view(place.world, -1).unbind()), part)


_COLLECTIVES = {
    "all-reduce": _Collective(
        lambda buffer, _place: dist.all_reduce(buffer),
        lambda world: 2 * (world - 1) / world,
        lambda world: torch.full((2 * world,), world * (world + 1) / 2),
    ),
    "all-gather": _Collective(
        _all_gather,
        lambda world: (world - 1) / world,
        lambda world: torch.arange(1, world + 1).repeat_interleave(2).float(),
    ),
    "broadcast": _Collective(
        lambda buffer, _place: dist.broadcast(buffer, 0), lambda _world: 1.0, lambda world: torch.ones(2 * world)
    ),
}


class Communication:
    """The work of a collective: each step runs it once for each size. A "sample" is one 4-byte number on every rank.

    ``taken_ns`` contains each round's times by size. The buffers are zeros, whose sums stay zero: other numbers would
    need to be reset before each round.
    """

    preparation_ns: int | None = None

    def __init__(self, options: Options, place: Place) -> None:
        self.place = place
        self.name = options["collective"]
        count = max(1, place.world)
        self.sizes = [max(1, size // _FLOAT_BYTES // count) * count for size in options["collective_sizes"]]
        self.taken_ns: list[list[int]] = []
        self._collective = _COLLECTIVES[self.name]
        self._buffers = [torch.full((size,), 0.0, device=place.device.device) for size in self.sizes]
        rounds = options["steps"] or _DEFAULT_ROUNDS
        self.length = timed_loop.Length(checked=0, warm_up=options["warmup_steps"], timed=rounds, epoch=0)
        self.source = itertools.repeat(Batch(torch.empty(0), torch.empty(0), sum(self.sizes)))
        self.startup_ns = place.age_ns()
        self._check()

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> None:
        """Run one round and time each size."""
        runs = [partial(self._collective.run, buffer, self.place) for buffer in self._buffers]
        self.taken_ns.append([self.place.device.elapsed_ns(run) for run in runs])
        mark("exchange")

    def _check(self) -> None:
        """Run the collective once on known numbers; raises RunError if the result is wrong."""
        world, device = self.place.world, self.place.device.device
        buffer = torch.full((2 * world,), float(self.place.rank + 1), device=device)
        self._collective.run(buffer, self.place)
        expected = self._collective.result(world)
        if not torch.equal(buffer.cpu(), expected):
            raise RunError(f"{self.name} over {world} processes gave {buffer.tolist()}, not {expected.tolist()}")

    def drive(self, loop: timed_loop.Loop) -> None:
        """Run all steps of the loop."""
        timed_loop.drive(self, loop)

    def after(self, timed: timed_loop.Timed) -> dict[str, Any]:
        """Return the parts of the record that are specific to this work, with one row per size."""
        columns = zip(*self.taken_ns[-len(timed.steps_ns) :])
        table = [self._row(size * _FLOAT_BYTES, times_ns) for size, times_ns in zip(self.sizes, columns)]
        data = {"name": "none", "stand_in": False, "digest": None}
        return {"data": data, "result": {"collective": table}, "profile": None, "onnx": None, "model_bytes": None}

    def _row(self, size: int, times_ns: tuple[int, ...]) -> dict[str, Any]:
        median_s = statistics.median(times_ns) / 1e9
        return {
            "bytes": size,
            "median_s": median_s,
            "fastest_s": min(times_ns) / 1e9,
            "algorithm_bytes_per_s": size / median_s,
            "bus_bytes_per_s": size / median_s * self._collective.bus_share(self.place.world),
        }

    def close(self) -> None:
        """Do nothing: there is nothing to clean up."""
