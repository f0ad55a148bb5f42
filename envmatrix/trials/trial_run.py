"""The first look at a program: it is run once, as a trial of no design, to see how long it takes and what it prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from envmatrix.block.program_folder import RECORD
from envmatrix.build.pythons import ask
from envmatrix.engines.base import Engine, Job, Limits, Mounts, Prepared
from envmatrix.engines.catalog import DEFAULT
from envmatrix.errors import InputError, NothingRanError
from envmatrix.evidence.record import Record
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.system.process import Exit
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials import own_program
from envmatrix.trials.environment_shell import scratch
from envmatrix.trials.experiment import snapshot_bench
from envmatrix.trials.failure_hints import hints_of
from envmatrix.trials.failure_reason import tail, why_program_failed
from envmatrix.trials.feasibility import placed_workload
from envmatrix.trials.images import open_engines, places_of
from envmatrix.trials.program_variables import given_variables
from envmatrix.trials.trial import base_variables, load_record

#: How much output (bytes) was there so many seconds after the start, whenever it had grown.
Arrivals = Sequence[tuple[float, int]]
#: How often (seconds) it is looked whether output has come.
_WATCH_S = 0.02
_PYTHON = re.compile(r"python(\d(\.\d+)?t?)?\Z")


@dataclass(frozen=True)
class Started:
    """A program as a workload has it: the Python that it runs with, and its words (``python`` is that one)."""

    interpreter: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """What one run of a program showed; ``wall_s`` is start to end as the host saw it.

    ``output`` is what it printed, of a long one both ends; ``arrivals`` say when its first part came.
    """

    wall_s: float
    output: str
    record: Record
    log: Path
    arrivals: Arrivals = ()


def started(words: tuple[str, ...]) -> Started:
    """Find the program that a command line names, and its Python: the one that `python` is here, or a script's own.

    Raises InputError for what cannot be started from this folder.
    """
    program = words[0]
    # Debian calls it python3; in a command of a matrix, `python` is the environment's own wherever it is.
    found = shutil.which(program) or (_here() if program == "python" else None)
    if found is None:
        raise InputError(f"there is no program {program!r} here", remedy=_instead(words))
    if is_python(program):
        return Started(_executable(found), ("python", *words[1:]))
    return Started(_executable(_shebang(found) or _here()), words)


def is_python(program: str) -> bool:
    """Say whether a program is a Python, by its name."""
    return _PYTHON.match(Path(program).name) is not None


def given(words: tuple[str, ...], interpreter: str) -> Started:
    """Return a program with the Python that was named for it, whether or not it is here."""
    return Started(interpreter, ("python", *words[1:]) if is_python(words[0]) else words)


def _instead(words: tuple[str, ...]) -> str:
    program = words[0]
    file = Path(program)
    if len(words) == 1 and " " in program.strip():
        if re.search(r"[;&|<>$`*]", program):
            return f"a shell has to read it: -- bash -c {shlex.quote(program)}"
        return f"without quotes: -- {program}"
    if file.is_file() and file.suffix == ".py":
        return f"-- python {' '.join(words)}"
    if file.is_file() and os.access(file, os.X_OK):
        return f"name its folder too, as a shell wants it: -- ./{' '.join(words)}"
    if file.is_file():
        return f"make it executable (`chmod +x {program}`), or name what runs it: -- bash {' '.join(words)}"
    near = get_close_matches(file.name, [path.name for path in Path.cwd().iterdir()], n=1)
    return f"did you mean ./{near[0]}?" if near else "name a program of the PATH, or a file: -- ./run.sh"


def _executable(path: str) -> str:
    """Return the interpreter that a path starts: a shim of pyenv or a link starts another one."""
    python = ask(path)
    if python is None:
        raise InputError(f"{path} is no Python that starts", remedy="activate the environment that has one")
    return python.path


def _shebang(file: str) -> str | None:
    """Return the Python that a script names in its first line, as console scripts of a venv do."""
    with Path(file).open("rb") as body:
        first = body.readline(4096).decode(errors="replace")
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    named = shutil.which(words[0]) if words else None
    return named if named and _PYTHON.match(Path(words[0]).name) else None


def _here() -> str:
    return shutil.which("python") or shutil.which("python3") or sys.executable


def look(
    workload: Workload,
    image: Image,
    limit_s: float,
    log: Path,
    progress: ProgressCallback,
    begins: Callable[[], None] = lambda: None,
) -> Look:
    """Run a program once in its own Python with nothing set; a NothingRanError has its last words if it fails.

    ``begins`` is called when that is prepared.
    """
    here = Path.cwd()
    workload = placed_workload(workload, here)
    engine, prepared, bench = _opened(image, here, progress)
    begins()
    with scratch() as work:
        job = _job(engine, prepared, workload, bench, work, limit_s, log)
        files = Path(workload.files or here)
        job = own_program.with_files(engine, job, files, str(files), own_program.metric_file(workload))
        with _watched(log) as arrivals:
            ended = engine.run(job)
        _, record = load_record(work / RECORD)
    if record is None or not ended.ok:
        raise _failure(ended, log, workload, image)
    output = log.read_bytes().decode(errors="replace")  # its carriage returns are kept: they end states of a bar
    return Look(ended.wall_s, output, record, log, tuple(arrivals))


@contextmanager
def _watched(log: Path) -> Iterator[list[tuple[float, int]]]:
    """Note when a log grows, while this is entered."""
    arrivals, began, done = [(0.0, 0)], time.monotonic(), threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_S):
            size = log.stat().st_size if log.exists() else 0
            if size > arrivals[-1][1]:
                arrivals.append((time.monotonic() - began, size))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield arrivals
    finally:
        done.set()
        thread.join()


def _opened(image: Image, here: Path, progress: ProgressCallback) -> tuple[Engine, Prepared, Path]:
    bench = snapshot_bench()[1]
    engine = open_engines([DEFAULT], places_of(here / "matrix.yaml", bench))[DEFAULT]
    return engine, engine.prepare(image, (), progress), bench


def _job(
    engine: Engine, prepared: Prepared, workload: Workload, bench: Path, work: Path, limit_s: float, log: Path
) -> Job:
    mounts = Mounts(work, {"bench": bench})
    inside = engine.inside(mounts)
    record = f"{inside['work']}/{RECORD}"
    argv = (prepared.python, *own_program.command_arguments(workload, record, prepared.python, inside["bench"]))
    base = {**base_variables(inside["work"], inside["bench"], prepared.python), "PYTHONUNBUFFERED": "1"}
    return Job(
        run="first-look", label=work.name, prepared=prepared, argv=argv, env=given_variables(workload, base),
        preload=(), mounts=mounts, limits=Limits(seconds=limit_s), log=log,
    )  # fmt: skip


def _failure(ended: Exit, log: Path, workload: Workload, image: Image) -> NothingRanError:
    why = str(ended) if ended.timed_out else why_program_failed(log) or f"the process {ended}"
    lines = "".join(f"\n  | {line}" for line in tail(log))
    hints = hints_of(workload, image, "\n".join(tail(log, 50)), Path.cwd())
    return NothingRanError(f"the program does not run: {why}{lines}", remedy=hints or "mend it, then try again")
