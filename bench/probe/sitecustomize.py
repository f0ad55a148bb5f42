"""Evidence from inside a program that knows nothing of it: Python imports this file at its start.

``bench command`` puts its folder on PYTHONPATH. At the start it only reads the CPU set. At the exit it writes
``$BENCH_PROBE/<pid>.json`` with the evidence and the time that collecting took, so that the wrapper can
subtract it. A program ended by a signal or ``os._exit`` leaves none.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))


def _allowed() -> list[int] | None:
    try:
        return sorted(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return None


def _chain() -> None:
    """Run the sitecustomize that this one hides, as Debian's and some clusters' Pythons have one."""
    import importlib.machinery

    others = [path for path in sys.path if path and os.path.abspath(path) != _HERE]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        import importlib.util

        found.loader.exec_module(importlib.util.module_from_spec(found))


def _write(folder: str, allowed: list[int] | None, pid: int) -> None:
    if os.getpid() != pid:
        return
    start = time.perf_counter_ns()
    # The program may have a module called bench of its own; it is over now, so ours may take the name.
    for name in [name for name in sys.modules if name == "bench" or name.startswith("bench.")]:
        del sys.modules[name]
    sys.path.insert(0, os.path.dirname(os.path.dirname(_HERE)))
    import json

    from bench import evidence

    first = dict(evidence.before_torch(), affinity_before=allowed)
    document = {
        "evidence": evidence.collect(first, None),
        "cpu_s": time.process_time(),
        "probe_ns": time.perf_counter_ns() - start,
    }
    path = os.path.join(folder, f"{pid}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(path + ".part", path)


def _at_exit(folder: str, allowed: list[int] | None, pid: int) -> None:
    try:
        _write(folder, allowed, pid)
    except Exception as error:  # the program's own exit must not change
        print(f"bench probe: no evidence: {error}", file=sys.stderr)


if os.environ.get("BENCH_PROBE"):
    # Registered first, so it runs last: the program's own exit handlers are part of the program.
    atexit.register(_at_exit, os.environ["BENCH_PROBE"], _allowed(), os.getpid())
_chain()
