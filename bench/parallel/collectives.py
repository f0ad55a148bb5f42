"""Communication bandwidth: time one collective (such as all-reduce) over several sizes, and check its result."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor

from bench import timing
from bench.errors import RunError
from bench.options import Options
from bench.place import Place
from bench.steps import Mark, no_mark
from bench.tensors import Batch

_DEFAULT_ROUNDS = 50
_FLOAT_BYTES = 4

#: Bytes on the busiest link per byte of payload, as NVIDIA's nccl-tests define bus bandwidth (doc/PERFORMANCE.md).
_BUS_SHARE: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda world: 2 * (world - 1) / world,
    "all-gather": lambda world: (world - 1) / world,
    "broadcast": lambda _world: 1.0,
}


class Exchange:
    """A step that runs the collective once for each size; ``taken_ns`` contains each round's times by size.

    The buffers are zeros, whose sums stay zero: other numbers would need to be reset before each round.
    """

    def __init__(self, options: Options, place: Place) -> None:
        self.place = place
        self.name = options["collective"]
        count = max(1, place.world)
        self.sizes = [max(1, size // _FLOAT_BYTES // count) * count for size in options["collective_sizes"]]
        self.taken_ns: list[list[int]] = []
        self._act = _COLLECTIVES[self.name]
        self._buffers = [torch.full((size,), 0.0, device=place.device.device) for size in self.sizes]

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> None:
        """Run one round and time each size."""
        times_ns = [self.place.device.elapsed_ns(partial(self._act, part, self.place)) for part in self._buffers]
        self.taken_ns.append(times_ns)
        mark("exchange")

    def table(self, rounds: int) -> list[dict[str, Any]]:
        """Return one row per size, computed from the last ``rounds`` rounds."""
        columns = zip(*self.taken_ns[-rounds:])
        return [self._row(size * _FLOAT_BYTES, times_ns) for size, times_ns in zip(self.sizes, columns)]

    def _row(self, size: int, times_ns: tuple[int, ...]) -> dict[str, Any]:
        median_s = statistics.median(times_ns) / 1e9
        return {
            "bytes": size,
            "median_s": median_s,
            "fastest_s": min(times_ns) / 1e9,
            "algorithm_bytes_per_s": size / median_s,
            "bus_bytes_per_s": size / median_s * _BUS_SHARE[self.name](self.place.world),
        }

    def check(self) -> None:
        """Run the collective once on known numbers; raises RunError if the result is wrong."""
        world, device = self.place.world, self.place.device.device
        buffer = torch.full((2 * world,), float(self.place.rank + 1), device=device)
        self._act(buffer, self.place)
        expected = {
            "all-reduce": torch.full((2 * world,), world * (world + 1) / 2),
            "all-gather": torch.arange(1, world + 1).repeat_interleave(2).float(),
            "broadcast": torch.ones(2 * world),
        }[self.name]
        if not torch.equal(buffer.cpu(), expected):
            raise RunError(f"{self.name} over {world} processes gave {buffer.tolist()}, not {expected.tolist()}")


class Communication:
    """The work of a collective, ready for its first step; a "sample" is one 4-byte number on every rank."""

    preparation_ns: int | None = None

    def __init__(self, options: Options, place: Place) -> None:
        self.step = Exchange(options, place)
        rounds = options["steps"] or _DEFAULT_ROUNDS
        self.length = timing.Length(checked=0, warm_up=options["warmup_steps"], timed=rounds, epoch=0)
        self.source = self._numbers()
        self.startup_ns = place.age_ns()
        self.step.check()

    def _numbers(self) -> Iterator[Batch]:
        empty = torch.empty(0)
        while True:
            yield Batch(empty, empty, sum(self.step.sizes))

    def drive(self, loop: timing.Loop) -> None:
        """Run all steps of the loop."""
        timing.drive(self.step, loop)

    def after(self, timed: timing.Timed) -> dict[str, Any]:
        """Return the parts of the record that are specific to this work."""
        table = self.step.table(len(timed.steps_ns))
        data = {"name": "none", "stand_in": False, "digest": None}
        return {"data": data, "result": {"collective": table}, "profile": None, "onnx": None, "model_bytes": None}

    def close(self) -> None:
        """Do nothing: there is nothing to clean up."""


def _all_reduce(buffer: Tensor, _place: Place) -> None:
    dist.all_reduce(buffer)


def _all_gather(buffer: Tensor, place: Place) -> None:
    part = buffer.view(place.world, -1)[place.rank].clone()
    dist.all_gather(list(buffer.view(place.world, -1).unbind()), part)


def _broadcast(buffer: Tensor, _place: Place) -> None:
    dist.broadcast(buffer, 0)


_COLLECTIVES: dict[str, Callable[[Tensor, Place], None]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "broadcast": _broadcast,
}
