"""How fast the processes talk: one collective over several sizes, its result checked (all-reduce bandwidth)."""

import statistics
import time

import torch
import torch.distributed as dist

from bench import counters
from bench.errors import RunError

_DEFAULT_ROUNDS = 50
_FLOAT_BYTES = 4

#: Bytes on the busiest link per byte of payload, as NVIDIA's nccl-tests define bus bandwidth (doc/PERFORMANCE.md).
_BUS_SHARE = {
    "all-reduce": lambda world: 2 * (world - 1) / world,
    "all-gather": lambda world: (world - 1) / world,
    "broadcast": lambda _world: 1.0,
}


def measure(options, place, device, import_ns, startup_ns):
    """Time ``steps`` rounds of the collective over all sizes; return (record parts, stolen ticks).

    A "sample" is one 4-byte number that every rank holds afterwards.
    """
    from bench.parallel.measure import Series, gather

    sizes = [max(1, size // _FLOAT_BYTES // place.world) * place.world for size in options["collective_sizes"]]
    buffers = [torch.full((size,), float(place.rank + 1), device=device.device) for size in sizes]
    act = _COLLECTIVES[options["collective"]]
    ready_ns = startup_ns()
    _check(act, options["collective"], place, device)
    start = time.perf_counter_ns()
    for _ in range(options["warmup_steps"]):
        _round(act, buffers, place, device)
    device.wait()
    warm_ns = time.perf_counter_ns() - start
    rounds = options["steps"] or _DEFAULT_ROUNDS
    dist.barrier()
    counted = counters.read()
    taken = [_round(act, buffers, place, device) for _ in range(rounds)]
    counted = counters.since(counted)
    counted["peak_rss_bytes"], counted["peak_gpu_bytes"] = counters.peak_rss_bytes(), device.peak_bytes()
    steps_ns = [sum(each) for each in taken]
    series = Series(steps_ns, [], [0], sum(steps_ns), rounds * sum(sizes))
    table = [
        _row(options["collective"], size * _FLOAT_BYTES, place.world, [each[number] for each in taken])
        for number, size in enumerate(sizes)
    ]
    result = {
        "loss": None, "accuracy": None, "training_loss": None, "parameters": None,
        "samples": series.samples, "steps": rounds, "collective": table,
    }  # fmt: skip
    data = {"name": "none", "stand_in": False, "digest": None}
    return gather(data, result, series, counted, (ready_ns, import_ns, warm_ns))


def _row(name, size, world, times_ns):
    median_s = statistics.median(times_ns) / 1e9
    return {
        "bytes": size,
        "median_s": median_s,
        "fastest_s": min(times_ns) / 1e9,
        "algorithm_bytes_per_s": size / median_s,
        "bus_bytes_per_s": size / median_s * _BUS_SHARE[name](world),
    }


def _round(act, buffers, place, device):
    """Run the collective once for each size and return each one's nanoseconds on this rank."""
    taken = []
    for buffer in buffers:
        device.wait()
        start = time.perf_counter_ns()
        act(buffer, place)
        device.wait()
        taken.append(time.perf_counter_ns() - start)
        buffer.fill_(float(place.rank + 1))  # else sums grow until they are infinite
    return taken


def _all_reduce(buffer, _place):
    dist.all_reduce(buffer)


def _all_gather(buffer, place):
    part = buffer.view(place.world, -1)[place.rank].clone()
    dist.all_gather(list(buffer.view(place.world, -1).unbind()), part)


def _broadcast(buffer, _place):
    dist.broadcast(buffer, 0)


_COLLECTIVES = {"all-reduce": _all_reduce, "all-gather": _all_gather, "broadcast": _broadcast}


def _check(act, name, place, device):
    """Run it once on known numbers: a collective that is fast and wrong is worth nothing."""
    buffer = torch.full((2 * place.world,), float(place.rank + 1), device=device.device)
    act(buffer, place)
    expected = {
        "all-reduce": torch.full((2 * place.world,), place.world * (place.world + 1) / 2),
        "all-gather": torch.arange(1, place.world + 1).repeat_interleave(2).float(),
        "broadcast": torch.ones(2 * place.world),
    }[name]
    if not torch.equal(buffer.cpu(), expected):
        raise RunError(f"{name} over {place.world} processes gave {buffer.tolist()}, not {expected.tolist()}")
