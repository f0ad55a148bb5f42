"""Evidence from inside a program that knows nothing of it: Python imports this file at its start.

``bench command`` puts its folder on PYTHONPATH. At the start it only reads the CPU set. When torch is imported it
notes from then on which numbers of threads the program asks for. At the exit it writes ``$BENCH_PROBE/<pid>.json`` with
the evidence and the time that collecting took, so that the wrapper can subtract it. A program ended by a signal or
``os._exit`` leaves none.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False  # importing typing would slow every Python down by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _allowed() -> list[int] | None:
    try:
        return sorted(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return None


def _finders() -> list[Any]:
    return sys.meta_path


class _TorchNotes:
    """Finds torch for the import system once, and has ``torch.set_num_threads`` note what it is called with."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        _finders().remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                noting = self._noting(module.set_num_threads)
                for place in (module, getattr(module, "_C", None)):
                    if hasattr(place, "set_num_threads"):
                        place.set_num_threads = noting  # type: ignore[union-attr]

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _noting(self, function: Callable[[int], None]) -> Callable[[int], None]:
        import functools

        @functools.wraps(function)
        def set_num_threads(number: int) -> None:
            function(number)
            if number not in self.threads:
                self.threads.append(number)

        return set_num_threads


def _chain() -> None:
    """Run the sitecustomize that this one hides, as Debian's and some clusters' Pythons have one."""
    import importlib.machinery

    others = [path for path in sys.path if path and os.path.abspath(path) != _HERE]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        import importlib.util

        found.loader.exec_module(importlib.util.module_from_spec(found))


def _write(folder: str, allowed: list[int] | None, pid: int, notes: _TorchNotes) -> None:
    if os.getpid() != pid:
        return
    start, cpu_s, children_s = time.perf_counter_ns(), time.process_time(), _children_s()
    # The program may have a module called bench of its own; it is over now, so ours may take the name.
    for name in [name for name in sys.modules if name == "bench" or name.startswith("bench.")]:
        del sys.modules[name]
    sys.path.insert(0, os.path.dirname(os.path.dirname(_HERE)))
    import json

    from bench import evidence

    first = dict(evidence.before_torch(), affinity_before=allowed)
    os.environ["BENCH_PROBE"] = ""  # what evidence starts is no part of the program
    collected = evidence.collect(first, None)
    if collected["torch"] is not None:
        collected["torch"]["threads_set"] = notes.threads
    document = {
        "evidence": collected,
        "cpu_s": cpu_s,
        "probe_cpu_s": [time.process_time() - cpu_s, _children_s() - children_s],
        "probe_ns": time.perf_counter_ns() - start,
    }
    path = os.path.join(folder, f"{pid}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(path + ".part", path)


def _children_s() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _at_exit(folder: str, allowed: list[int] | None, pid: int, notes: _TorchNotes) -> None:
    try:
        _write(folder, allowed, pid, notes)
    except Exception as error:  # the program's own exit must not change
        print(f"bench probe: no evidence: {error}", file=sys.stderr)


if os.environ.get("BENCH_PROBE"):
    _notes = _TorchNotes()
    _finders().insert(0, _notes)
    # Registered first, so it runs last: the program's own exit handlers are part of the program.
    atexit.register(_at_exit, os.environ["BENCH_PROBE"], _allowed(), os.getpid(), _notes)
_chain()
