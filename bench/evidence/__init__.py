"""Evidence: the actual settings of this process's environment, verified at run time (docs/record.md).

Nothing here runs during the timed part. An item that cannot be read is None: evidence never ends a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from bench import recorded_variables
from bench.evidence import machine, memory, program_from_outside, sandbox
from bench.evidence.reading import attempt

#: Parts of the evidence that are modules of this folder, and only there if PyTorch is loaded.
_OF_TORCH = ("onednn", "inductor", "collectives", "cuda", "xla")


def before_torch() -> dict[str, Any]:
    """Read the values that ``import torch`` or the work may change. Call it before both."""
    return {
        "affinity_before": attempt(machine.affinity),
        "load_1m": attempt(lambda: os.getloadavg()[0]),
        "variables": recorded_variables.recorded_texts(os.environ),
    }


def collect(
    first: Mapping[str, Any], affinity_after: list[int] | None, steal_ticks: int | None = None
) -> dict[str, Any]:
    """Return all evidence.

    ``first`` comes from ``before_torch``, ``affinity_after`` is the CPU mask just after importing torch, and
    ``steal_ticks`` the machine's stolen ticks during the timed part.
    """
    # Not loaded for a program of one's own: its trials should start fast.
    from bench.evidence import blas, malloc, openmp, packages, pytorch, symbol_resolution

    torch = sys.modules.get("torch")
    earlier_affinity = first["affinity_before"]
    cpu = dict(
        machine.cpu(),
        affinity_before=earlier_affinity,
        affinity_list=attempt(lambda: machine.cpu_list(earlier_affinity)),
        affinity_after=affinity_after,
        affinity_end=attempt(machine.affinity),
    )
    return {
        "openmp": attempt(lambda: openmp.collect(earlier_affinity)),
        "malloc": attempt(malloc.collect),
        "blas": attempt(blas.collect),
        "torch": attempt(lambda: pytorch.collect(torch)) if torch else None,
        "cpu": cpu,
        "memory": attempt(memory.collect),
        "sandbox": attempt(sandbox.collect),
        "system": dict(
            machine.system(),
            load_1m=first["load_1m"],
            steal_ticks=steal_ticks,
            mhz=attempt(machine.frequency),
        ),
        **{part: attempt(partial(_collect_part, part)) if torch else None for part in _OF_TORCH},
        "packages": attempt(packages.collect),
        "libraries": attempt(symbol_resolution.loaded_paths),
        "preloaded": attempt(
            lambda: program_from_outside.preloaded_files(
                program_from_outside.preload_names(), symbol_resolution.loaded_paths()
            )
        ),
        "variables": first["variables"],
    }


def _collect_part(part: str) -> Any:
    return import_module(f"bench.evidence.{part}").collect()
