"""The folder results/RUN/: run.json is written once, trials.jsonl and history.jsonl are appended to and fsynced.

Files are anonymized (``Anonymizer``); ``RunFolder.load_for_resume`` restores the real names.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from envmatrix.errors import StoreError, Where
from envmatrix.plan import Plan
from envmatrix.results.anonymize import Anonymizer, local_anonymizer, read_anonymizer
from envmatrix.results.document_checks import require_exact_schema, validated
from envmatrix.results.plan_check import Line, RejectedLine, RejectLine, planned_lines, raise_on_rejected
from envmatrix.results.run_model import SCHEMA, Change, Run
from envmatrix.results.trial import Reading, Trial, TrialFacts, trial_from_line
from envmatrix.results.trial_line_reader import LineReader, read_facts
from envmatrix.system.atomic_files import (
    append_line,
    move_lines,
    read_text,
    read_whole_lines,
    remove_partial_line,
    store_error,
    unpack_lines,
    write_whole,
)
from envmatrix.system.bench_options import without_userinfo
from envmatrix.system.json_parsing import parse_json, parse_json_line, replace_surrogate_escapes
from envmatrix.system.reading_with_retries import exists

_RESTORE = "restore the file from a copy"


class RunFolder:
    """The folder of one run. Only one process can write to it: ``lock`` refuses a second one."""

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
        """The folder of the trials' logs."""
        return self.path / "logs"

    @property
    def names(self) -> Anonymizer:
        """The anonymizer of this run; a run without names.json keeps its host names."""
        if self._names is None:
            self._names = read_anonymizer(self.names_file) or local_anonymizer()
        return self._names

    def create(self, run: Run, matrix: str, home: Path | None = None, *, host_names: bool = False) -> None:
        """Create the folder with the text of the ``matrix``, and write run.json last.

        ``home`` is the folder of the matrix. With ``host_names``, real host names are recorded.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise store_error(error, self.path) from error
        write_whole(self.matrix_file, without_userinfo(matrix))
        self._names = local_anonymizer(home, None if host_names else {})
        document = self._names.run(run.model_dump(by_alias=True))
        self._names.save(self.names_file)
        write_whole(self.run_file, replace_surrogate_escapes(without_userinfo(json.dumps(document, indent=1))) + "\n")

    def matrix(self) -> str:
        """Return the matrix as it was when the run began, as one text without includes."""
        if exists(self.matrix_file):
            return read_text(self.matrix_file)
        remedy = "restore it from a copy"
        raise StoreError("the matrix of this run is missing", where=Where(self.matrix_file), remedy=remedy)

    def lock(self) -> None:
        """Lock the folder until ``unlock`` or the end of this process; raise StoreError if another process has it."""
        if self._lock is not None:
            return
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise store_error(error, self.path) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise store_error(error, self.path) from error
            message, remedy = "another envmatrix is writing to this run", "wait until it is finished"
            raise StoreError(message, where=Where(self.path), remedy=remedy) from error
        self._lock = handle

    def is_written(self) -> bool:
        """Return whether a process has the folder locked for writing."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> Run:
        """Read run.json and apply the changes recorded in history.jsonl."""
        return parse_run(read_text(self.run_file), self.run_file).changed(self.history())

    def load_for_resume(self) -> Run:
        """Read the run as ``load`` does, with real folders and host name, to resume it on this machine."""
        run = self.load()
        local_run = Run.model_validate(self.names.real(run.model_dump(by_alias=True)))
        host = replace(run.host, name=self.names.real_host(run.host.name))
        return local_run.model_copy(update={"history": run.history, "host": host})

    def history(self) -> Iterator[Change]:
        """Yield the changes made after the run began, in order; skip a half-written last line."""
        for number, line in read_whole_lines(self.history_file):
            yield parse_change(line.decode(errors="replace"), self.history_file, number)

    def change(self, change: Change) -> None:
        """Append a change to the history; it is on disk before this returns."""
        remove_partial_line(self.history_file, self.path / "history.half-written")
        line = replace_surrogate_escapes(
            json.dumps(self.names.run(change.model_dump(by_alias=True, exclude_none=True)))
        )
        append_line(self.history_file, without_userinfo(line))

    def append(self, trial: Trial) -> Trial:
        """Append one trial and flush it to disk; return it with its anonymized node."""
        return self._append(trial, self.trials_file)

    def append_steady_state_run(self, trial: Trial) -> None:
        """Append a steady-state run, which belongs to no block."""
        self._append(trial, self.looks_file)

    def _append(self, trial: Trial, file: Path) -> Trial:
        hosts = len(self.names.hosts or {})
        line = without_userinfo(anonymize_line(self.names, trial.line()))
        if len(self.names.hosts or {}) > hosts:
            self.names.save(self.names_file)
        append_line(file, line)
        return replace(trial, node=self.names.host(trial.node))

    def remove_partial_lines(self) -> bool:
        """Cut off a last line that a crash left half-written; say whether there was one of a trial.

        A file of lines that was compressed becomes plain again, so that it can be written to.
        """
        for file in (self.trials_file, self.looks_file):
            unpack_lines(file)
        remove_partial_line(self.looks_file, self.path / "looks.half-written")
        return remove_partial_line(self.trials_file, self.path / "trials.half-written")

    def set_aside(self, misfits: Sequence[RejectedLine]) -> None:
        """Move lines of trials.jsonl that do not match the plan to trials.set-aside."""
        move_lines(self.trials_file, {misfit.number for misfit in misfits}, self.path / "trials.set-aside")

    def trials(self, plan: Plan, refuse: RejectLine | None = None) -> Iterator[Trial]:
        """Yield the trials in the order they ran; skip a half-written last line.

        A line that does not match ``plan`` is passed to ``refuse``; without it, StoreError is raised.
        """
        return planned_lines(plan, _lines(self.trials_file), refuse or raise_on_rejected(self.trials_file))

    def readings(self, plan: Plan, refuse: RejectLine | None = None) -> Iterator[Reading | Trial]:
        """Yield the trials as ``trials`` does, for their figures alone: without raw step times, and much faster."""
        return self._read(LineReader().read, plan, refuse)

    def facts(self, plan: Plan, refuse: RejectLine | None = None) -> Iterator[TrialFacts]:
        """Yield the trials as ``trials`` does, without what their processes recorded."""
        return self._read(read_facts, plan, refuse)

    def _read(self, read: Callable[[bytes, Path, int], Line], plan: Plan, refuse: RejectLine | None) -> Iterator[Line]:
        lines = (read(line, self.trials_file, number) for number, line in read_whole_lines(self.trials_file))
        return planned_lines(plan, lines, refuse or raise_on_rejected(self.trials_file))

    def trial_in_line(self, number: int) -> Trial:
        """Return the trial in a complete line of trials.jsonl; the first line is 1."""
        _, line = next(islice(read_whole_lines(self.trials_file), number - 1, None))
        return trial_from_line(line.decode(errors="replace"), self.trials_file, number)

    def steady_state_runs(self, plan: Plan) -> Iterator[Trial]:
        """Yield the first steady-state run of each arm; skip a half-written last line."""
        runs: dict[str, Trial] = {}
        arm_names = {arm.name for arm in plan.arms}
        for number, trial in enumerate(_lines(self.looks_file), 1):
            if trial.arm not in arm_names:
                message = f"this line is not a steady-state run of this run: there is no {trial.arm}"
                where = Where(self.looks_file, number)
                raise StoreError(message, where=where, remedy="restore the file from a copy, or remove the line")
            runs.setdefault(trial.arm, trial)
        yield from runs.values()


def _lines(file: Path) -> Iterator[Trial]:
    for number, line in read_whole_lines(file):
        yield trial_from_line(line.decode(errors="replace"), file, number)


def anonymize_line(names: Anonymizer, line: str) -> str:
    """Return a line of trials.jsonl, anonymized; return the same text if there is nothing to replace."""
    document = json.loads(line)
    anonymized = names.trial(document)
    return line if anonymized == document else json.dumps(anonymized, separators=(",", ":"))


def parse_run(text: str, file: Path) -> Run:
    """Parse run.json; raise StoreError with the position if the schema is newer or the content invalid."""
    document = require_exact_schema(parse_json(text, file), file, SCHEMA)
    message = "this is not a run.json that envmatrix wrote ({})"
    return validated(Run, document, message, Where(file), "restore it from a copy", text)


def parse_change(line: str, file: Path, number: int) -> Change:
    """Parse one line of history.jsonl."""
    document = require_exact_schema(parse_json_line(line, file, number, _RESTORE), file, SCHEMA, number)
    return validated(Change, document, "this line is not a change of a run: {}", Where(file, number), _RESTORE)
