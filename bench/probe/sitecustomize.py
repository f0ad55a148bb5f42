"""Evidence from inside the user's program, without its cooperation: Python imports this file at start-up.

``bench command`` puts this folder on PYTHONPATH. At start-up it only reads the CPU set. Thread counts that the program
and its forks request are noted in ``$BENCH_PROBE/threads``, processes that ask for a GPU in ``gpus``, and what the
program sets itself in ``settings``, with the line that does. At exit it writes ``$BENCH_PROBE/<pid>.json`` with the
evidence and the time taken, so that the wrapper can subtract it. A program ended by a signal or ``os._exit`` leaves no
such file.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False  # importing typing would slow down every Python by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


#: Variables that settings of environments use, and that runtimes read once.
_NAMES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "DNNL_", "ONEDNN_", "TORCH_")
_LIBRARIES = (os.path.dirname(os.__file__), _HERE, "<")
_FOLDER = os.environ.get("BENCH_PROBE")


def _append(name: str, line: str) -> None:
    """Add a line to a file of notes. Every process, forks too, does so at once: it may end without exit handlers."""
    try:
        with open(os.path.join(_FOLDER or "", name), "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{line}\n")
    except OSError as error:
        print(f"bench probe: what it asked for was not noted: {error}", file=sys.stderr)


def _caller() -> FrameType:
    """Return the frame of the program's own code that called a patched function, otherwise that of a library."""
    frame = first = sys._getframe(2)
    while "-packages" in frame.f_code.co_filename or frame.f_code.co_filename.startswith(_LIBRARIES):
        if frame.f_back is None:
            return first
        frame = frame.f_back
    return frame


def _note_setting(name: str, value: object, caller: FrameType) -> None:
    """Note what the program sets itself, with the line that does."""
    if os.environ.get("BENCH_PROBE"):  # not while collecting evidence
        path = os.path.abspath(caller.f_code.co_filename)
        folder = os.getcwd() + os.sep
        path = path[len(folder) :] if path.startswith(folder) else os.sep.join(path.split(os.sep)[-3:])
        parts = (os.getpid(), name, value, f"line {caller.f_lineno} of {path}")
        _append("settings", "\t".join(" ".join(str(part).split()) for part in parts))


_threads_noted: set[tuple[int, int]] = set()


def _note_threads(number: Any) -> None:
    """Note a number of threads that a process requests."""
    try:
        note = os.getpid(), int(number)
    except (TypeError, ValueError) as error:  # the program's own work must not change
        print(f"bench probe: a number of threads was not noted: {error}", file=sys.stderr)
        return
    if note not in _threads_noted:
        _threads_noted.add(note)
        _append("threads", f"{note[0]} {note[1]}")


def _watch_variables(owner: Any) -> None:
    """Note variables that the program sets without looking first whether they are set."""
    get, put = owner.__getitem__, owner.__setitem__
    read_by: set[tuple[str, str]] = set()

    def read(variables: Any, name: Any) -> Any:
        if isinstance(name, str) and name.startswith(_NAMES):
            read_by.add((name, _caller().f_code.co_filename))
        return get(variables, name)

    def write(variables: Any, name: Any, value: Any) -> None:
        if isinstance(name, str) and name.startswith(_NAMES) and isinstance(value, str):
            caller = _caller()
            if (name, caller.f_code.co_filename) not in read_by and variables.get(name) != value:
                _note_setting(name, value, caller)
        put(variables, name, value)

    owner.__getitem__, owner.__setitem__ = read, write


def _watch_affinity(function: Any) -> None:
    def sched_setaffinity(pid: int, mask: Any) -> None:
        mask = list(mask)
        function(pid, mask)
        _note_setting("os.sched_setaffinity", ",".join(map(str, sorted(mask))), _caller())

    os.sched_setaffinity = sched_setaffinity


class _Finder:
    """An import hook that patches modules right after their import, each once."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module that is to be patched."""
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch_torch(torch: Any) -> None:
    """Note thread counts requested from torch, and the first time that anything but torch itself asks for a GPU."""
    import functools

    function = torch.set_num_threads

    @functools.wraps(function)
    def set_num_threads(number: int) -> None:
        function(number)
        # PyTorch always gives a data loader's worker one thread, whatever the environment.
        if sys._getframe(1).f_globals.get("__name__") != "torch.utils.data._utils.worker":
            _note_threads(number)
            _note_setting("torch.set_num_threads", number, _caller())

    for owner in (torch, getattr(torch, "_C", None)):
        if hasattr(owner, "set_num_threads"):
            owner.set_num_threads = set_num_threads  # type: ignore[union-attr]
    for owner in (getattr(torch, "cuda", None), getattr(torch, "accelerator", None)):
        if hasattr(owner, "is_available"):
            _watch_for_gpus(owner)


def _watch_for_gpus(owner: Any) -> None:
    import functools

    function = owner.is_available

    @functools.wraps(function)
    def is_available() -> bool:
        asks = str(sys._getframe(1).f_globals.get("__name__"))
        if os.environ.get("BENCH_PROBE") and not asks.startswith("torch."):  # not while collecting evidence
            owner.is_available = function
            _append("gpus", str(os.getpid()))
        return function()

    owner.is_available = is_available


def _watch_ctypes(ctypes: Any) -> None:
    """Note thread counts requested from OpenMP through ctypes."""
    find = ctypes.CDLL.__getitem__

    def noted(number: Any, _function: Any, arguments: tuple[Any, ...]) -> Any:
        for asked in arguments[:1]:
            _note_threads(getattr(asked, "value", asked))
            _note_setting("omp_set_num_threads", getattr(asked, "value", asked), _caller())
        return number

    def finding(library: Any, name: Any) -> Any:
        function = find(library, name)
        if name == "omp_set_num_threads":
            function.errcheck = noted
        return function

    ctypes.CDLL.__getitem__ = finding


def _chain() -> None:
    """Run the sitecustomize hidden by this one; Debian's and some clusters' Pythons have one."""
    import importlib.machinery

    other_folders = [path for path in sys.path if path and os.path.abspath(path) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", other_folders)
    if spec is not None and spec.loader is not None:
        import importlib.util

        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _write(folder: str, allowed: list[int] | None, pid: int, began_ns: int) -> None:
    if os.getpid() != pid:
        return
    start, cpu_s, children_s = time.perf_counter_ns(), time.process_time(), _children_s()
    first_thread = _first_thread()
    # The program may have its own module called bench. It has ended, so ours may take the name.
    for name in [name for name in sys.modules if name == "bench" or name.startswith("bench.")]:
        del sys.modules[name]
    sys.path.insert(0, os.path.dirname(os.path.dirname(_HERE)))
    import json

    from bench import evidence, step_thread_account
    from bench.evidence.reading import attempt

    thread = attempt(lambda: step_thread_account.whole_life(began_ns, *first_thread))
    first = dict(evidence.before_torch(), affinity_before=allowed)
    os.environ["BENCH_PROBE"] = ""  # processes started for evidence are not part of the program
    collected = evidence.collect(first, None)
    document = {
        "evidence": collected,
        "step_thread": thread,
        "parent": os.getppid(),
        "ended_s": time.monotonic(),
        "cpu_s": cpu_s,
        "children_s": children_s,
        "probe_cpu_s": [time.process_time() - cpu_s, _children_s() - children_s],
        "probe_ns": time.perf_counter_ns() - start,
    }
    path = os.path.join(folder, f"{pid}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(path + ".part", path)


def _first_thread() -> tuple[Any, ...]:
    """Return what the first thread has done so far: what is imported afterwards is no part of the program."""
    import resource

    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            scheduled = file.read()
    except OSError:
        scheduled = ""
    return time.thread_time_ns(), resource.getrusage(resource.RUSAGE_THREAD), scheduled


def _children_s() -> float:
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _at_exit(folder: str, allowed: list[int] | None, pid: int, began_ns: int) -> None:
    try:
        _write(folder, allowed, pid, began_ns)
    except Exception as error:  # the program's own exit must not change
        print(f"bench probe: no evidence: {error}", file=sys.stderr)


if _FOLDER:
    _watch_variables(type(os.environ))
    if hasattr(os, "sched_setaffinity"):
        _watch_affinity(os.sched_setaffinity)
    sys.meta_path.insert(0, _Finder({"torch": _watch_torch, "ctypes": _watch_ctypes}))
    if "ctypes" in sys.modules:  # a file of site-packages imported it earlier
        _watch_ctypes(sys.modules["ctypes"])
    # Registered first, so it runs last: the program's own exit handlers are part of the program.
    _cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    atexit.register(_at_exit, _FOLDER, _cpus, os.getpid(), time.perf_counter_ns())
_chain()
