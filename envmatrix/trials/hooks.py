"""What a user wants done around the trials of a program: commands, in the program's folder, on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from envmatrix.block import interrupts
from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.matrix.model import Workload
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import Heartbeat, ProgressCallback

_LONGEST_S = 24 * 3600.0


def set_up(workloads: Iterable[Workload], progress: ProgressCallback) -> None:
    """Run the ``setup`` of each workload. Raises InputError for one that fails."""
    for workload in workloads:
        if workload.setup:
            progress(f"setup of {workload.name}: {shlex.join(workload.setup)}")
            with Heartbeat(progress, f"setup of {workload.name} runs"):
                done = _run(workload, workload.setup)
            if not done.exit.ok:
                raise InputError(f"workload {workload.name!r}: its setup {done.exit}: {done.last_words(3)}")


def clean_up(workloads: Iterable[Workload], progress: ProgressCallback) -> None:
    """Run the ``cleanup`` of each workload; one that fails is told."""
    for workload in workloads:
        if workload.cleanup:
            try:
                done = _run(workload, workload.cleanup)
                said = "" if done.exit.ok else f"{done.exit}: {done.last_words(1)}"
            except EnvmatrixError as error:
                said = error.message
            progress(f"cleanup of {workload.name}: {said or shlex.join(workload.cleanup)}")


def _run(workload: Workload, argv: Sequence[str]) -> Finished:
    return run(argv, limit_s=_LONGEST_S, cwd=Path(workload.files or "."))


@contextmanager
def around(workloads: Iterable[Workload], progress: ProgressCallback, *, is_set_up: bool = False) -> Iterator[None]:
    """Set workloads up, unless that is done, and clean up after them whatever happens."""
    listed = tuple(workloads)
    try:
        if not is_set_up:
            set_up(listed, progress)
        yield
    except KeyboardInterrupt:
        interrupts.heeded()  # what cleans up now is not to be interrupted by the same signal
        raise
    finally:
        clean_up(listed, progress)
