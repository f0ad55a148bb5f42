"""Evidence on a program seen from outside, for programs that are not Python or left no result of the probe.

Mapped libraries and the threads of OpenMP runtimes are visible. The library behind ``malloc`` follows from the loader's
order. Settings inside the program are not visible, and those items are None.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from typing import Any

from bench import recorded_variables
from bench.evidence import elf, machine, memory, sandbox, symbol_resolution
from bench.evidence.process_tree_watch import Program
from bench.evidence.reading import attempt

#: Evidence that depends only on variables read at start-up, and so is equal in processes started alike.
_READ_AT_START = ("torch", "blas", "onednn", "packages")
#: Variables that may differ without effect on it. scikit-learn sets the last two in its own process.
_NO_SETTING = ("PYTHON", "CUDA_", "LC_", "BENCH_", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def evidence(program: Program) -> dict[str, Any]:
    """Return the evidence, in the form of the evidence that the probe collects inside a program."""
    workers = _workers(program)  # with threads of several runtimes, it is not known which one torch uses
    return {
        "openmp": {"library": next(iter(workers)), "workers": workers} if len(workers) == 1 else None,
        "malloc": attempt(lambda: _malloc(program)),
        "blas": None,
        "torch": None,
        "cpu": dict(
            machine.cpu(),
            thread_affinity=None,
            affinity_before=None,
            affinity_after=None,
            affinity_end=None,
            affinity_list=",".join(program.affinities) or None,
        ),
        "memory": dict(memory.collect(), huge_pages_bytes=None, **program.memory),
        "sandbox": attempt(sandbox.collect),
        # This process's Python is not the program's.
        "system": dict(machine.system(), python=None, gil=None, jit=None, executable=None),
        "packages": None,
        "libraries": None if program.libraries is None or not program.loaded else sorted(program.libraries),
        "variables": None if program.variables is None else recorded_variables.recorded_texts(program.variables),
    }


def preload_names() -> list[str]:
    """Return the libraries of LD_PRELOAD in this process; programs that it starts should have them too."""
    return os.environ.get("LD_PRELOAD", "").replace(":", " ").split()


def preloaded_files(listed: list[str], mapped: Collection[str] | None) -> dict[str, str | None] | None:
    """Return the mapped file, or None, of each library to preload; None for all if nothing could be read."""
    return None if mapped is None else {name: _mapped(name, mapped) for name in listed}


def _mapped(name: str, mapped: Collection[str]) -> str | None:
    if "/" in name:
        path = os.path.realpath(name)
        return path if path in mapped else None
    return next((path for path in sorted(mapped) if os.path.basename(path).startswith(name)), None)


def evidence_from_twin(program: Program, twin: Program) -> dict[str, Any] | None:
    """Return the evidence of a program without a probe, completed by that of its ``twin``, which has one.

    A twin is a process of the same file, variables, OpenMP runtimes and allocator: these read their settings at
    start-up. Worker threads are the program's own. Returns None if ``twin`` is not one.
    """
    known = (twin.probe or {})["evidence"]
    is_alike = program.path == twin.path and _relevant_variables(program) == _relevant_variables(twin) is not None
    own_evidence, openmp, malloc = evidence(program), known["openmp"], known["malloc"] or {}
    twin_libraries = [library["path"] for library in (openmp, malloc) if library and library.get("path")]
    mapped = program.libraries or ()
    if not is_alike or not mapped or any(path not in mapped for path in twin_libraries if ".so" in path):
        return None
    same_malloc = malloc and (own_evidence["malloc"] or {}).get("path") in (malloc.get("path"), None)
    return {
        **own_evidence,
        **{name: known.get(name) for name in _READ_AT_START},
        "openmp": dict(openmp, workers=_workers(program)) if openmp else own_evidence["openmp"],
        "malloc": dict(malloc, arenas=None) if same_malloc else own_evidence["malloc"],
        "system": {**own_evidence["system"], **{name: known["system"].get(name) for name in _PYTHON_FACTS}},
    }


_PYTHON_FACTS = ("python", "gil", "jit", "executable")


def _relevant_variables(program: Program) -> dict[str, str] | None:
    if program.variables is None:
        return None
    relevant = {name: value for name, value in program.variables.items() if recorded_variables.is_always_recorded(name)}
    return {name: value for name, value in relevant.items() if not name.startswith(_NO_SETTING)}


def _workers(program: Program) -> dict[str, int]:
    """Return the largest number of threads that each runtime started in the program's busiest process."""
    return program.teams.get(busiest(program), {})


def busiest(program: Program) -> int:
    """Return the id of the program's process that used most CPU time."""
    return max(program.of_process, key=lambda pid: program.of_process[pid], default=program.pid)


def _malloc(program: Program) -> dict[str, Any] | None:
    """Return the provider of ``malloc`` in the loader's order: the program, preloaded libraries, its dependencies.

    https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.dynamic.html "Shared Object Dependencies"
    """
    if program.path is None or program.variables is None or not program.libraries or not program.loaded:
        return None
    preload_list = program.variables.get("LD_PRELOAD", "").replace(":", " ").split()
    preloads = [path for name in preload_list if (path := _mapped(name, program.libraries))]
    for path in [program.path, *preloads]:
        if elf.defines(path, "malloc"):
            return _allocator(path)
    # The mappings do not show the loader's breadth-first order, so only a single definer is conclusive.
    definers = [path for path in sorted(program.libraries) if attempt(partial(elf.defines, path, "malloc"))]
    return _allocator(definers[0]) if len(definers) == 1 else None


def _allocator(path: str) -> dict[str, Any]:
    return {
        "library": symbol_resolution.short_name(path),
        "path": os.path.realpath(path),
        "version": None,
        "options": {},
    }
