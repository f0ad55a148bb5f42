"""Values derived from the options of group ``parallel``. Standard library only: the supervisor has no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from bench import options as workload_options
from bench.errors import BenchError, SkipError
from bench.options import PROCESSES_VARIABLE, WITH_RANKS, OptionError, Options, effective_batch, has_ranks

__all__ = ["PROCESSES_VARIABLE", "WITH_RANKS", "effective_batch", "has_ranks"]

#: The variable that names the device for ``device: environment``.
DEVICE_VARIABLE = "BENCH_DEVICE"
#: The variable that names torch.compile's back end for ``compile: environment``.
COMPILER_VARIABLE = "BENCH_COMPILE"


def device(options: Options, variables: Mapping[str, str] | None = None) -> str:
    """Return the device to train on: cpu, cuda or xla."""
    if options["device"] != "environment":
        return str(options["device"])
    name = (os.environ if variables is None else variables).get(DEVICE_VARIABLE, "cpu")
    if name not in ("cpu", "cuda", "xla"):
        raise BenchError(f"{DEVICE_VARIABLE} must be cpu, cuda or xla, not {name!r}")
    return name


def compiler(options: Options, variables: Mapping[str, str] | None = None) -> str:
    """Return torch.compile's back end: the option, or the one that the environment names (inductor or zentorch)."""
    if options["compile"] != "environment":
        return str(options["compile"])
    name = (os.environ if variables is None else variables).get(COMPILER_VARIABLE, "inductor")
    if name not in ("inductor", "zentorch"):
        raise BenchError(f"{COMPILER_VARIABLE} must be inductor or zentorch, not {name!r}")
    return name


def is_chosen(options: Options) -> bool:
    """Return whether the record has a section on processes and device: always, except for one process on the CPU."""
    return has_ranks(options) or options["parallel"] != "none" or bool(options["device"] != "cpu")


def processes(options: Options, variables: Mapping[str, str] | None = None) -> int:
    """Return the number of processes: the option, otherwise the variable, otherwise 2; always 1 without ranks."""
    try:
        return workload_options.processes(options, os.environ if variables is None else variables)
    except OptionError as error:
        raise BenchError(str(error)) from error


def learning_rate(options: Options, world: int) -> float:
    """Return the learning rate for the effective batch, scaled according to ``learning_rate_scaling``."""
    growth: float = effective_batch(options, world) / options["batch_size"]
    factors = {"none": 1.0, "linear": growth, "square-root": growth**0.5}
    return float(options["learning_rate"] * factors[options["learning_rate_scaling"]])


def resolve_options(options: Options) -> Options:
    """Return the options with ``device: environment`` replaced by the device that the environment names.

    Raises SkipError if that device cannot do what the other options ask for.
    """
    resolved_options: Options = {**options, "device": device(options)}
    if options["device"] == "environment":
        rules = workload_options.broken_rules(cast("dict[str, workload_options.Value]", resolved_options))
        if rules:
            raise SkipError(f"{rules[0].message}; the environment names device {resolved_options['device']}")
    return resolved_options


def check(options: Options) -> None:
    """Raise BenchError for a batch that cannot be cut into equal shares."""
    try:
        workload_options.check_shares(options, os.environ, _threads(options))
    except OptionError as error:
        raise BenchError(str(error)) from error


def _threads(options: Options) -> int:
    return 2 if options["parallel"] == "dp" and device(options) == "cpu" else 1
