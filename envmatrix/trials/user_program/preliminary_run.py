"""The trial run of a program: one run outside any design, to learn its duration and output."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envmatrix.block.program_folder import RECORD
from envmatrix.build.python.interpreters import inspect_interpreter
from envmatrix.engines.base import Engine, Job, Limits, Mounts, Prepared
from envmatrix.engines.catalog import DEFAULT
from envmatrix.errors import EnvmatrixError, InputError, NothingRanError
from envmatrix.evidence.trial_record import Record
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.system.process import Exit
from envmatrix.system.progress import Heartbeat, ProgressCallback
from envmatrix.trials.environment_for_commands import temporary_work_folder
from envmatrix.trials.execution import base_variables, load_record
from envmatrix.trials.experiment_setup import snapshot_bench
from envmatrix.trials.failure_reason import log_tail, why_program_failed
from envmatrix.trials.feasibility import resolve_program_folder
from envmatrix.trials.images import build_places, open_engines
from envmatrix.trials.user_program import invocation
from envmatrix.trials.user_program.command_line_check import is_python, missing_program_error
from envmatrix.trials.user_program.failure_hints import find_failure_hints
from envmatrix.trials.user_program.passed_variables import starting_variables

#: Pairs of (seconds since the start, bytes of output so far), one whenever the output had grown.
Arrivals = Sequence[tuple[float, int]]
#: Interval between checks for new output (seconds).
_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True)
class ProgramCommand:
    """A program as in a workload: its Python, and its words (in which ``python`` means that one)."""

    interpreter: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class TrialRunResult:
    """Result of one run of a program; ``wall_s`` is start to end as measured on the host.

    ``output`` is cut in the middle if it is long; ``arrivals`` are the times of its first part.
    """

    wall_s: float
    output: str
    record: Record
    arrivals: Arrivals = ()


def find_program(words: tuple[str, ...]) -> ProgramCommand:
    """Return the program that a command line names, with its Python: the current `python`, or a script's own.

    Raises InputError for a program that cannot be started from this folder.
    """
    program = words[0]
    # Debian has only python3; in a command of a matrix, `python` always means the environment's own.
    program_path = shutil.which(program) or (_default_python() if program == "python" else None)
    if program_path is None:
        raise missing_program_error(words)
    if is_python(program):
        return ProgramCommand(_real_interpreter(program_path), ("python", *words[1:]))
    return ProgramCommand(_real_interpreter(_shebang_python(program_path) or _default_python()), words)


def with_interpreter(words: tuple[str, ...], interpreter: str) -> ProgramCommand:
    """Return a program with the given Python, which need not exist on this machine."""
    return ProgramCommand(interpreter, ("python", *words[1:]) if is_python(words[0]) else words)


def _real_interpreter(path: str) -> str:
    """Return the interpreter that a path starts, which differs from the path for a pyenv shim or a link."""
    try:
        return inspect_interpreter(path).path
    except EnvmatrixError as error:
        remedy = f"{error.remedy}; or " if error.remedy else ""
        raise InputError(
            f"{path} is not a Python that starts: {error.message}",
            remedy=f"{remedy}activate an environment with a working Python",
        ) from error


def _shebang_python(file: str) -> str | None:
    """Return the Python in the first line of a script, such as a console script of a venv."""
    with Path(file).open("rb") as body:
        first_line = body.readline(4096).decode(errors="replace")
    words = first_line[2:].split() if first_line.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    python = shutil.which(words[0]) if words else None
    return python if python and is_python(words[0]) else None


def _default_python() -> str:
    return shutil.which("python") or shutil.which("python3") or sys.executable


def run_once(
    workload: Workload,
    image: Image,
    limit_s: float,
    log: Path,
    progress: ProgressCallback,
    engine_name: str = DEFAULT,
    gpus: tuple[str, ...] = (),
    outlook: Callable[[float], str] = lambda _: "",
) -> TrialRunResult:
    """Run a program once in its own Python without settings. Raises NothingRanError with its last lines if it fails.

    ``outlook``: what to add to the progress while it runs, after so many seconds.
    """
    current_folder = Path.cwd()
    workload = resolve_program_folder(workload, current_folder)
    bench = snapshot_bench()[1]
    engine = open_engines([engine_name], build_places(current_folder / "matrix.yaml", bench))[engine_name]
    prepared = engine.prepare(image, (), progress)
    with temporary_work_folder() as work, Heartbeat(progress, "the program runs", outlook=outlook):
        job = _make_job(engine, prepared, workload, bench, work, Limits(seconds=limit_s, gpus=gpus), log)
        files = job.mounts.read["files"]
        inner_path = engine.inside(job.mounts)["files"]
        job = invocation.place_program_files(engine, job, files, inner_path, invocation.metric_file(workload))
        with _record_arrivals(log) as arrivals:
            exit_status = engine.run(job)
        _, record = load_record(work / RECORD)
    if record is None or not exit_status.ok:
        raise _failure_error(exit_status, job, log, workload, image)
    output = log.read_bytes().decode(errors="replace")  # keeps carriage returns: they end states of a progress bar
    return TrialRunResult(exit_status.wall_s, output, record, tuple(arrivals))


@contextmanager
def _record_arrivals(log: Path) -> Iterator[list[tuple[float, int]]]:
    """Record when a log grows, while the context is open."""
    arrivals, start_s, stop_event = [(0.0, 0)], time.monotonic(), threading.Event()

    def watch() -> None:
        while not stop_event.wait(_POLL_INTERVAL_S):
            size = log.stat().st_size if log.exists() else 0
            if size > arrivals[-1][1]:
                arrivals.append((time.monotonic() - start_s, size))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield arrivals
    finally:
        stop_event.set()
        thread.join()


def _make_job(
    engine: Engine, prepared: Prepared, workload: Workload, bench: Path, work: Path, limits: Limits, log: Path
) -> Job:
    same_paths = tuple(Path(path) for path in workload.mounts)
    mounts = Mounts(work, {"bench": bench, "files": Path(workload.files or Path.cwd())}, same_paths)
    inner_paths = engine.inside(mounts)
    record = f"{inner_paths['work']}/{RECORD}"
    argv = (prepared.python, *invocation.python_arguments(workload, record, prepared.python, inner_paths["bench"]))
    base = {**base_variables(inner_paths["work"], inner_paths["bench"], prepared.python), "PYTHONUNBUFFERED": "1"}
    return Job(
        run="first-look",
        label=work.name,
        prepared=prepared,
        argv=argv,
        env=starting_variables(workload, base),
        preload=(),
        mounts=mounts,
        limits=limits,
        log=log,
    )


def _failure_error(exit_status: Exit, job: Job, log: Path, workload: Workload, image: Image) -> NothingRanError:
    reason = str(exit_status) if exit_status.timed_out else why_program_failed(log) or f"the process {exit_status}"
    lines = "".join(f"\n  | {line}" for line in log_tail(log))
    output = "\n".join(log_tail(log, 50))
    hints = find_failure_hints(workload, image, output, Path.cwd(), by_links=job.overlay is None)
    return NothingRanError(
        f"your program failed in its trial run: {reason}{lines}", remedy=hints or "fix it, then try again"
    )
