"""What the options of group ``parallel`` amount to; standard library only, the supervisor has no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from bench import options as workload_options
from bench.errors import BenchError, SkipError
from bench.options import Options

#: The variable that says how many processes there are where the option does not: so a level of a factor can.
PROCESSES_VARIABLE = "BENCH_PROCESSES"
#: The variable that names the device of ``device: environment``.
DEVICE_VARIABLE = "BENCH_DEVICE"
_DEFAULT_PROCESSES = 2
_MOST_PROCESSES = 4096

#: Strategies that need a process per share of the batch.
WITH_RANKS = ("ddp", "ddp-pipeline", "fsdp", "lightning", "horovod")


def device(options: Options, variables: Mapping[str, str] | None = None) -> str:
    """Return the device to train on: cpu, cuda or xla."""
    if options["device"] != "environment":
        return str(options["device"])
    name = (os.environ if variables is None else variables).get(DEVICE_VARIABLE, "cpu")
    if name not in ("cpu", "cuda", "xla"):
        raise BenchError(f"{DEVICE_VARIABLE} must be cpu, cuda or xla, not {name!r}")
    return name


def is_chosen(options: Options) -> bool:
    """Whether the record tells of its processes and device: what the plain run on one CPU process has nothing of."""
    return has_ranks(options) or options["parallel"] != "none" or bool(options["device"] != "cpu")


def has_ranks(options: Options) -> bool:
    """Whether processes of their own have to be started."""
    return options["parallel"] in WITH_RANKS or bool(options["collective"] != "none")


def processes(options: Options, variables: Mapping[str, str] | None = None) -> int:
    """Return the number of processes: the option's, else the variable's, else 2; 1 where there are no ranks."""
    if not has_ranks(options):
        return 1
    if options["processes"] is not None:
        return int(options["processes"])
    text = (os.environ if variables is None else variables).get(PROCESSES_VARIABLE, str(_DEFAULT_PROCESSES))
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_PROCESSES:
        raise BenchError(f"{PROCESSES_VARIABLE} must be a number from 1 to {_MOST_PROCESSES}, not {text!r}")
    return int(text)


def effective_batch(options: Options, world: int) -> int:
    """Return the samples that one optimiser step sees, over all processes."""
    size: int = options["batch_size"]
    return size * (world if options["batch_scope"] == "process" else 1)


def learning_rate(options: Options, world: int) -> float:
    """Return the learning rate for the effective batch, scaled as ``learning_rate_scaling`` says."""
    growth: float = effective_batch(options, world) / options["batch_size"]
    factors = {"none": 1.0, "linear": growth, "square-root": growth**0.5}
    return float(options["learning_rate"] * factors[options["learning_rate_scaling"]])


def resolved(options: Options) -> Options:
    """Return the options with the device that the environment names, where they leave it to that.

    Raises SkipError where that device cannot do what the other options ask for.
    """
    chosen: Options = {**options, "device": device(options)}
    if options["device"] == "environment":
        broken = workload_options.broken_rules(cast("dict[str, workload_options.Value]", chosen))
        if broken:
            raise SkipError(f"{broken[0].message}; the environment names device {chosen['device']}")
    return chosen


def check(options: Options) -> None:
    """Raise BenchError for a batch that cannot be cut into equal shares."""
    world = _processes_over_nodes(options)
    shares = world * _threads(options) * options["micro_batches"]
    if options["collective"] != "none" or shares == 1:
        return
    batch, parts = effective_batch(options, world), shares * options["accumulation"]
    if batch % parts:
        raise BenchError(
            f"a batch of {batch} cannot be cut into {parts} equal parts (processes or threads "
            f"{world * _threads(options)}, accumulation {options['accumulation']}, micro_batches "
            f"{options['micro_batches']}): choose a --batch-size that is a multiple of {parts}"
        )


def _processes_over_nodes(options: Options) -> int:
    """Return the number of processes, after checking that every node gets as many."""
    world = processes(options)
    if world % options["nodes"]:
        raise BenchError(
            f"{world} processes cannot be spread evenly over {options['nodes']} nodes: "
            f"choose --processes as a multiple of --nodes"
        )
    return world


def _threads(options: Options) -> int:
    return 2 if options["parallel"] == "dp" and device(options) == "cpu" else 1
