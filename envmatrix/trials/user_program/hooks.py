"""The user's ``setup`` and ``cleanup`` commands around the trials of a program, run in its folder on this machine."""

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


def run_setup(workloads: Iterable[Workload], progress: ProgressCallback) -> None:
    """Run the ``setup`` of each workload. Raises InputError for one that fails."""
    for workload in workloads:
        if workload.setup:
            progress(f"setup of {workload.name}: {shlex.join(workload.setup)}")
            with Heartbeat(progress, f"setup of {workload.name} is running"):
                finished = _run_hook(workload, workload.setup)
            if not finished.exit.ok:
                raise InputError(f"workload {workload.name!r}: its setup {finished.exit}: {finished.last_words(3)}")


def run_cleanup(workloads: Iterable[Workload], progress: ProgressCallback) -> None:
    """Run the ``cleanup`` of each workload, and report failures."""
    for workload in workloads:
        if workload.cleanup:
            try:
                finished = _run_hook(workload, workload.cleanup)
                message = "" if finished.exit.ok else f"{finished.exit}: {finished.last_words(1)}"
            except EnvmatrixError as error:
                message = error.message
            progress(f"cleanup of {workload.name}: {message or shlex.join(workload.cleanup)}")


def _run_hook(workload: Workload, argv: Sequence[str]) -> Finished:
    return run(argv, limit_s=_LONGEST_S, cwd=Path(workload.files or "."))


@contextmanager
def setup_and_cleanup(
    workloads: Iterable[Workload], progress: ProgressCallback, *, is_set_up: bool = False
) -> Iterator[None]:
    """Set workloads up, unless that is done, and always clean up after them."""
    listed = tuple(workloads)
    try:
        if not is_set_up:
            run_setup(listed, progress)
        yield
    except KeyboardInterrupt:
        interrupts.mark_handled()  # so that this signal does not interrupt the cleanup too
        raise
    finally:
        run_cleanup(listed, progress)
