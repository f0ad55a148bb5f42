"""What the options of group ``parallel`` amount to; standard library only, the supervisor has no torch."""

import os

from bench.errors import BenchError

#: The variable that says how many processes there are where the option does not: so a level of a factor can.
PROCESSES_VARIABLE = "BENCH_PROCESSES"
#: The variable that names the device of ``device: environment``.
DEVICE_VARIABLE = "BENCH_DEVICE"
_DEFAULT_PROCESSES = 2
_MOST_PROCESSES = 4096

#: Ways that need a process per share of the batch.
WITH_RANKS = ("ddp", "ddp-pipeline", "fsdp", "lightning", "horovod")


def device(options, variables=None):
    """Return the device to train on: cpu, cuda or xla."""
    if options["device"] != "environment":
        return options["device"]
    name = (os.environ if variables is None else variables).get(DEVICE_VARIABLE, "cpu")
    if name not in ("cpu", "cuda", "xla"):
        raise BenchError(f"{DEVICE_VARIABLE} must be cpu, cuda or xla, not {name!r}")
    if name == "xla" and options["parallel"] != "none":
        raise BenchError(f"{DEVICE_VARIABLE}=xla trains in one process: leave --parallel at none")
    return name


def is_chosen(options):
    """Whether these options ask for anything that the plain, one-process CPU run does not do."""
    return options["parallel"] != "none" or options["collective"] != "none" or options["device"] != "cpu"


def has_ranks(options):
    """Whether processes of their own have to be started."""
    return options["parallel"] in WITH_RANKS or options["collective"] != "none"


def processes(options, variables=None):
    """Return the number of processes: the option's, else the variable's, else 2; 1 where there are no ranks."""
    if not has_ranks(options):
        return 1
    if options["processes"] is not None:
        return options["processes"]
    text = (os.environ if variables is None else variables).get(PROCESSES_VARIABLE, str(_DEFAULT_PROCESSES))
    if not text.isdigit() or not 1 <= int(text) <= _MOST_PROCESSES:
        raise BenchError(f"{PROCESSES_VARIABLE} must be a number from 1 to {_MOST_PROCESSES}, not {text!r}")
    return int(text)


def effective_batch(options, world):
    """Return the samples that one optimiser step sees, over all processes."""
    return options["batch_size"] * (world if options["batch_scope"] == "process" else 1)


def learning_rate(options, world):
    """Return the learning rate for the effective batch, scaled as ``learning_rate_scaling`` says."""
    growth = effective_batch(options, world) / options["batch_size"]
    return (
        options["learning_rate"]
        * {"none": 1.0, "linear": growth, "square-root": growth**0.5}[options["learning_rate_scaling"]]
    )


def check(options):
    """Raise BenchError for a batch that cannot be cut into the parts asked for."""
    if options["collective"] != "none":
        if options["parallel"] != "none":
            raise BenchError("--collective measures communication alone: leave --parallel at none")
        if device(options) == "xla":
            raise BenchError("--collective runs on --device cpu (Gloo) or cuda (NCCL)")
        _processes_over_nodes(options)
        return
    world = _processes_over_nodes(options)
    batch, shares = effective_batch(options, world), world * _threads(options)
    parts = shares * options["accumulation"] * options["micro_batches"]
    if batch % parts:
        raise BenchError(
            f"a batch of {batch} cannot be cut into {parts} equal parts (processes or threads {shares}, "
            f"accumulation {options['accumulation']}, micro_batches {options['micro_batches']}): "
            f"choose a --batch-size that is a multiple of {parts}"
        )


def _processes_over_nodes(options):
    """Return the number of processes, after checking that every node gets as many."""
    world = processes(options)
    if world % options["nodes"]:
        raise BenchError(
            f"{world} processes cannot be spread evenly over {options['nodes']} nodes: "
            f"choose --processes as a multiple of --nodes"
        )
    return world


def _threads(options):
    return 2 if options["parallel"] == "dp" and device(options) == "cpu" else 1
