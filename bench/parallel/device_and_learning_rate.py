"""Values derived from the options of group ``parallel``. Standard library only: the supervisor has no torch."""

from __future__ import annotations

import os

from bench import options as workload_options
from bench.errors import BenchError, SkipError
from bench.options import PROCESSES_VARIABLE, Options, effective_batch, has_ranks, processes

__all__ = ["PROCESSES_VARIABLE", "effective_batch", "has_ranks", "processes"]


def device(options: Options) -> str:
    """Return the device to train on: cpu, cuda or xla."""
    return _chosen(options["device"], "BENCH_DEVICE", os.environ.get("BENCH_DEVICE"), ("cpu", "cuda", "xla"))


def compiler(options: Options) -> str:
    """Return torch.compile's back end: the option, or the one that the environment names."""
    return _chosen(options["compile"], "BENCH_COMPILE", os.environ.get("BENCH_COMPILE"), ("inductor", "zentorch"))


def _chosen(option: str, variable: str, value: str | None, known: tuple[str, ...]) -> str:
    """Return the option, or the variable's value if it leaves that to the environment; the first one if it is unset."""
    if option != "environment":
        return option
    if value not in (None, *known):
        raise BenchError(f"{variable} must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
    return value or known[0]


def needs_parallel_section(options: Options) -> bool:
    """Return whether the record has a section on processes and device: always, except for one process on the CPU."""
    return has_ranks(options) or options["parallel"] != "none" or bool(options["device"] != "cpu")


def learning_rate(options: Options, world: int) -> float:
    """Return the learning rate for the effective batch, scaled according to ``learning_rate_scaling``."""
    growth: float = effective_batch(options, world) / options["batch_size"]
    factors = {"none": 1.0, "linear": growth, "square-root": growth**0.5}
    return float(options["learning_rate"] * factors[options["learning_rate_scaling"]])


def resolve_device(options: Options) -> Options:
    """Return the options with ``device: environment`` replaced by the device that the environment names.

    Raises SkipError if that device cannot do what the other options ask for.
    """
    resolved_options = {**options, "device": device(options)}
    if options["device"] == "environment":
        rules = workload_options.broken_rules(resolved_options)
        if rules:
            raise SkipError(f"{rules[0].message}; the environment names device {resolved_options['device']}")
    return resolved_options


def check_batch_divides(options: Options) -> None:
    """Raise OptionError for a batch that cannot be cut into equal shares."""
    threads = 2 if options["parallel"] == "dp" and device(options) == "cpu" else 1
    workload_options.check_divisibility(options, os.environ, threads)
