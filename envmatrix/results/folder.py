"""results/RUN/: run.json written once, trials.jsonl and history.jsonl appended and fsynced, nothing ever rewritten.

What is written names no folder, user or host of this machine (``names``); ``load_here`` gives them back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from envmatrix.system.bench_options import without_userinfo
from envmatrix.errors import StoreError, Where
from envmatrix.plan import Plan
from envmatrix.results.document_checks import check_schema, first_mistake, locate_value
from envmatrix.system.atomic_files import append_line, remove_partial_line, store_error, read_text, read_whole_lines, move_lines, write_whole
from envmatrix.system.json_text import parse_json, parse_json_line, replace_lone_surrogates
from envmatrix.results.anonymize import Anonymizer, local_anonymizer, read_anonymizer
from envmatrix.results.plan_check import RejectedLine, RejectLine, planned_lines, raise_on_rejected
from envmatrix.results.run import SCHEMA, Change, Run
from envmatrix.system.shared_files import exists
from envmatrix.results.trial import Trial, trial_from_line

_RESTORE = "restore the file from a copy"


class RunFolder:
    """The folder of one run. One writer at a time: ``lock`` refuses a second one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / "run.json"
        self.matrix_file = path / "matrix.yaml"
        self.trials_file = path / "trials.jsonl"
        self.looks_file = path / "looks.jsonl"
        self.history_file = path / "history.jsonl"
        self.names_file = path / "names.json"
        self._names: Anonymizer | None = None
        self._lock: int | None = None

    @property
    def logs(self) -> Path:
        """Folder of the trials' logs."""
        return self.path / "logs"

    @property
    def names(self) -> Anonymizer:
        """What is shown instead of this machine's own; a run that has no names keeps those of its hosts."""
        if self._names is None:
            self._names = read_anonymizer(self.names_file) or local_anonymizer()
        return self._names

    def create(self, run: Run, matrix: str, home: Path | None = None, *, host_names: bool = False) -> None:
        """Make the folder, keep the text of the ``matrix`` in it, and write run.json last.

        ``home`` is the folder of the matrix; ``host_names``: hosts are called what they are called.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise store_error(error, self.path) from error
        write_whole(self.matrix_file, without_userinfo(matrix))
        self._names = local_anonymizer(home, None if host_names else {})
        document = self._names.run(run.model_dump(by_alias=True))
        self._names.save(self.names_file)
        write_whole(self.run_file, replace_lone_surrogates(without_userinfo(json.dumps(document, indent=1))) + "\n")

    def matrix(self) -> str:
        """Return the matrix as it was when the run began: one text that includes nothing."""
        if exists(self.matrix_file):
            return read_text(self.matrix_file)
        raise StoreError("the matrix of this run is missing", where=Where(self.matrix_file), remedy="restore it from a copy")

    def lock(self) -> None:
        """Hold the folder until ``unlock`` or the end of this process; StoreError when another one holds it."""
        if self._lock is not None:
            return
        try:
            self._lock = self._acquire_lock()
        except BlockingIOError as error:
            raise StoreError(
                "another envmatrix is writing to this run",
                where=Where(self.path),
                remedy="wait until it is finished",
            ) from error
        except OSError as error:
            raise store_error(error, self.path) from error

    def _acquire_lock(self) -> int:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def is_written(self) -> bool:
        """Say whether another writer holds the folder now."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def unlock(self) -> None:
        """Let another writer in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> Run:
        """Read run.json, and lay over it what history.jsonl says was changed since."""
        return parse_run(read_text(self.run_file), self.run_file).changed(self.history())

    def load_for_resume(self) -> Run:
        """Read the run as ``load`` does, with folders and host as this machine knows them: to go on with it."""
        run = self.load()
        local_run = Run.model_validate(self.names.real(run.model_dump(by_alias=True)))
        host = replace(run.host, name=self.names.real_host(run.host.name))
        return local_run.model_copy(update={"history": run.history, "host": host})

    def history(self) -> Iterator[Change]:
        """Yield what was changed after the run began, in order; a half-written last line is passed over."""
        for number, line in read_whole_lines(self.history_file):
            yield parse_change(line.decode(errors="replace"), self.history_file, number)

    def change(self, change: Change) -> None:
        """Append a change to the history; it is on disk before this returns."""
        remove_partial_line(self.history_file, self.path / "history.half-written")
        line = replace_lone_surrogates(json.dumps(self.names.run(change.model_dump(by_alias=True, exclude_none=True))))
        append_line(self.history_file, without_userinfo(line))

    def append(self, trial: Trial) -> Trial:
        """Append one trial and make sure it is on disk; return it with the node that readers see."""
        return self._append(trial, self.trials_file)

    def append_steady_state_run(self, trial: Trial) -> None:
        """Append a long look, which is no trial of a block."""
        self._append(trial, self.looks_file)

    def _append(self, trial: Trial, file: Path) -> Trial:
        hosts = len(self.names.hosts or {})
        line = without_userinfo(anonymize_line(self.names, trial.line()))
        if len(self.names.hosts or {}) > hosts:
            self.names.save(self.names_file)
        append_line(file, line)
        return replace(trial, node=self.names.host(trial.node))

    def remove_partial_lines(self) -> bool:
        """Cut off a last line that a crash left half-written; say whether there was one of a trial."""
        remove_partial_line(self.looks_file, self.path / "looks.half-written")
        return remove_partial_line(self.trials_file, self.path / "trials.half-written")

    def set_aside(self, misfits: Sequence[RejectedLine]) -> None:
        """Move lines of trials.jsonl that are no trials of the plan to trials.set-aside."""
        move_lines(self.trials_file, {misfit.number for misfit in misfits}, self.path / "trials.set-aside")

    def trials(self, plan: Plan, refuse: RejectLine | None = None) -> Iterator[Trial]:
        """Yield the trials in the order they ran; a half-written last line is passed over.

        A line that is no trial of ``plan`` is a StoreError, unless there is somebody else to ``refuse`` it.
        """
        return planned_lines(plan, self._lines(), refuse or raise_on_rejected(self.trials_file))

    def looks(self, plan: Plan) -> Iterator[Trial]:
        """Yield the long looks, the first at each arm; a half-written last line is passed over."""
        met: set[str] = set()
        arm_names = {arm.name for arm in plan.arms}
        for number, line in read_whole_lines(self.looks_file):
            trial = trial_from_line(line.decode(errors="replace"), self.looks_file, number)
            if trial.arm not in arm_names:
                raise StoreError(
                    f"this line is not a steady-state run of this run: there is no {trial.arm}",
                    where=Where(self.looks_file, number),
                    remedy="restore the file from a copy, or remove the line",
                )
            if trial.arm not in met:
                met.add(trial.arm)
                yield trial

    def _lines(self) -> Iterator[Trial]:
        for number, line in read_whole_lines(self.trials_file):
            yield trial_from_line(line.decode(errors="replace"), self.trials_file, number)


def anonymize_line(names: Anonymizer, line: str) -> str:
    """Return a line of trials.jsonl with names instead of a machine's own; one that needs none stays as it is."""
    document = json.loads(line)
    anonymized = names.trial(document)
    return line if anonymized == document else json.dumps(anonymized, separators=(",", ":"))


def parse_run(text: str, file: Path) -> Run:
    """Read run.json; a newer schema, or what is no run.json, is a StoreError that names the place."""
    document = check_schema(parse_json(text, file), file, SCHEMA)
    try:
        return Run.model_validate(document)
    except ValidationError as error:
        path, message = first_mistake(error)
        raise StoreError(
            f"this is not a run.json that envmatrix wrote ({message})",
            where=locate_value(text, file, path),
            remedy="restore it from a copy",
        ) from error


def parse_change(line: str, file: Path, number: int) -> Change:
    """Read one line of history.jsonl."""
    try:
        document = parse_json_line(line, file, number, _RESTORE)
        return Change.model_validate(check_schema(document, file, SCHEMA, number))
    except ValidationError as error:
        message = first_mistake(error)[1]
        raise StoreError(
            f"this line is not a change of a run: {message}",
            where=Where(file, number),
            remedy=_RESTORE,
        ) from error
