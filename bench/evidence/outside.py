"""What can be said of a program from outside: for programs that are not Python, or that nobody could ask.

Which libraries are mapped is seen. Which of them serves ``malloc`` follows from the loader's order; what else a library
does inside the program is not seen, and those items stay None.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from functools import partial
from typing import Any

from bench import variables
from bench.evidence import dynamic, elf, machine, memory, sandbox
from bench.evidence.reading import attempt
from bench.evidence.tree import Program

#: What compiled code calls to set the number of threads: OpenMP's function, and at::set_num_threads(int).
_SETTERS = (b"omp_set_num_threads", b"_ZN2at15set_num_threadsEi")
_OF_TORCH = ("libgomp", "libiomp5", "libomp", "libtorch", "libc10")


def evidence(program: Program) -> dict[str, Any]:
    """Return the evidence in the form of the inside one."""
    affinity = ",".join(program.affinities) or None
    return {
        "openmp": None,
        "malloc": attempt(lambda: _malloc(program)),
        "blas": None,
        "torch": None,
        "cpu": dict(machine.cpu(), thread_affinity=None, affinity_before=None, affinity_after=None,
                    affinity_end=None, affinity_list=affinity),
        "memory": dict(memory.collect(), huge_pages_bytes=None, **program.memory),
        "sandbox": attempt(sandbox.collect),
        # This process's own Python is another one than the program's, if that is one at all.
        "system": dict(machine.system(), python=None, gil=None, jit=None, executable=None),
        "packages": None,
        "libraries": None if program.libraries is None else sorted(program.libraries),
        "variables": None if program.variables is None else variables.all_shown(program.variables),
    }  # fmt: skip


def wanted() -> list[str]:
    """Return the libraries that this process was told to preload; its programs should have them too."""
    return os.environ.get("LD_PRELOAD", "").replace(":", " ").split()


def preloaded(listed: list[str], mapped: Collection[str] | None) -> dict[str, str | None] | None:
    """Return, for each library to preload, the file of it that is mapped; None when nothing could be read."""
    return None if mapped is None else {name: _mapped(name, mapped) for name in listed}


def _mapped(name: str, mapped: Collection[str]) -> str | None:
    if "/" in name:
        path = os.path.realpath(name)
        return path if path in mapped else None
    return next((path for path in sorted(mapped) if os.path.basename(path).startswith(name)), None)


def setters(mapped: Collection[str], torch: str | None) -> list[str]:
    """Return the libraries, but the runtimes and PyTorch's own, that can set numbers of threads without a word."""
    others = [path for path in sorted(mapped) if not os.path.basename(path).startswith(_OF_TORCH)]
    return [path for path in others if not path.startswith(f"{torch}/") and attempt(partial(_names_a_setter, path))]


def _names_a_setter(path: str) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(b"\0" + name + b"\0") >= 0 for name in _SETTERS)


def _malloc(program: Program) -> dict[str, Any] | None:
    """Return who serves ``malloc`` by the loader's order: the program, what is preloaded, what it needs.

    https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.dynamic.html "Shared Object Dependencies"
    """
    if program.path is None or program.variables is None or not program.libraries:
        return None
    listed = program.variables.get("LD_PRELOAD", "").replace(":", " ").split()
    first = [path for name in listed if (path := _mapped(name, program.libraries))]
    for path in [program.path, *first]:
        if elf.defines(path, "malloc"):
            return _allocator(path)
    # What it needs is searched breadth first, which the order of the mappings does not tell: one alone must have it.
    others = [path for path in sorted(program.libraries) if attempt(partial(elf.defines, path, "malloc"))]
    return _allocator(others[0]) if len(others) == 1 else None


def _allocator(path: str) -> dict[str, Any]:
    return {"library": dynamic.short_name(path), "path": os.path.realpath(path), "version": None, "options": {}}
