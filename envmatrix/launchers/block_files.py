"""Files that a block's job writes to the shared file system. They alone decide which trials are done.

An unreadable file is never treated as missing: reading is retried for some seconds, then the run stops with an error
that names it (``system.reading_with_retries``).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from envmatrix.results import NodeCheck, write_whole
from envmatrix.system.atomic_files import write_with_retry
from envmatrix.system.process import Exit
from envmatrix.system.reading_with_retries import exists, read_with_retry, unreadable_error
from envmatrix.system.regular_files import RefusedFileError, read_bytes


@dataclass(frozen=True)
class TrialEnd:
    """The document ``end`` of a trial; ``folder`` contains its work folder and its log.

    ``status`` is a shell's, ``ooms`` the number of processes killed for lack of memory, ``epoch`` the start by the
    node's clock, ``uptime`` start and end in seconds since the node started, and ``late`` whether the time limit ended
    it. ``stops``: how often its job was suspended meanwhile; ``repeated``: how many earlier results were discarded;
    ``before``: how many leftover processes of earlier trials were ended first; ``checks``: the state of each node
    before the block; ``together``: the number of trials that were interleaved, including itself (None: not
    interleaved).
    """

    folder: Path
    node: str
    status: int
    ooms: int
    epoch: float
    uptime: tuple[float, float]
    late: bool = False
    stops: int = 0
    repeated: int = 0
    before: int | None = None
    checks: tuple[NodeCheck, ...] = ()
    together: int | None = None

    @property
    def exit(self) -> Exit:
        """How its process ended."""
        code = 128 - self.status if self.status > 128 else self.status
        out_of_memory = self.ooms > 0 and self.status != 0 and not self.late
        return Exit(code, self.uptime[1] - self.uptime[0], self.late, out_of_memory)


@dataclass(frozen=True)
class Start:
    """One line of ``starts``: a trial started in this attempt, after ``restarts`` restarts of its job."""

    trial: str
    attempt: int
    restarts: int
    job: str
    node: str


@dataclass(frozen=True)
class Begun:
    """The record that a job writes when it starts; ``epoch`` is its node's clock, in seconds."""

    job: str = ""
    node: str = ""
    epoch: float = 0.0
    restarts: int = 0


_END, _BEGUN = TypeAdapter(TrialEnd), TypeAdapter(Begun)
Document = TypeVar("Document")


@dataclass(frozen=True)
class BlockFolder:
    """The folder of one block: scripts, starts, and one folder for every finished trial."""

    path: Path

    @property
    def attempt(self) -> int:
        """Number of the attempt that may run trials (0: none yet)."""
        text = _read(self.path / "attempt").strip()
        return int(text) if text.isdecimal() else 0

    def start_new_attempt(self) -> int:
        """Start a new attempt and return its number; the job of an older attempt stops before its next trial."""
        write_with_retry(lambda: self.path.mkdir(parents=True, exist_ok=True), self.path)
        number = self.attempt + 1
        write_whole(self.path / "attempt", f"{number}\n")
        return number

    @property
    def node(self) -> str:
        """Name of the node that finished a trial of this block, '' if there is none."""
        return _read(self.path / "node").strip()

    def script(self, attempt: int) -> Path:
        """Return the path of an attempt's script."""
        return self.path / f"script-{attempt}.sh"

    def order(self, attempt: int) -> Path:
        """Return the path of an attempt's order."""
        return self.path / f"order-{attempt}.json"

    def planned(self, attempt: int) -> set[str]:
        """Return the trials that an attempt's job runs."""
        return set(_read(self.path / f"planned-{attempt}").split())

    def plan(self, attempt: int, trials: Iterable[str]) -> None:
        """Record which trials an attempt's job runs."""
        write_whole(self.path / f"planned-{attempt}", "".join(f"{trial}\n" for trial in trials))

    def work(self, trial: str, attempt: int, group: str = "") -> Path:
        """Return the work folder of a trial while it runs, separately or in ``group``."""
        return self.path / (f"{group}.try{attempt}/{trial}" if group else f"{trial}.try{attempt}") / "work"

    def holds(self, trial: str) -> bool:
        """Return whether the folder contains ``trial`` under its final name."""
        return exists(self.path / trial)

    def begun(self, attempt: int) -> Begun | None:
        """Return the record that an attempt's job wrote when it started; None if there is none."""
        return _document(_BEGUN, self.path / f"begun-{attempt}")

    def stop_status_node_and_path(self, attempt: int) -> tuple[int, str, str] | None:
        """Return (status, node, path) of an attempt whose script stopped by itself."""
        words = _read(self.path / f"stopped-{attempt}").strip().split(" ", 2)
        if len(words) < 2 or not words[0].isdecimal():
            return None
        return int(words[0]), words[1], words[2] if len(words) == 3 else ""

    def starts(self) -> list[Start]:
        """Return every start of a trial; an incomplete last line is ignored."""
        rows = (line.split() for line in _read(self.path / "starts").splitlines())
        return [Start(r[0], int(r[1]), int(r[2]), r[3], r[4]) for r in rows if len(r) == 5 and r[1].isdecimal()]

    def end(self, trial: str) -> TrialEnd | None:
        """Return how a trial ended; None if it has not ended."""
        return _document(_END, self.path / trial / "end", folder=self.path / trial)

    def set_aside_if_damaged(self, unit: str, trial: str = "") -> Path | None:
        """Move the files of ``unit`` away if its ``end`` is damaged (such as by a full disk), so that it runs again.

        ``trial`` is the path of the damaged trial if ``unit`` is a group: all of it is moved. Returns the new path;
        None if there was nothing, or nothing damaged.
        """
        folder = self.path / unit
        if not exists(folder) or self.end(trial or unit) is not None:
            return None
        return self._put_aside(folder, f"{unit}.damaged")

    def throw_away(self, trial: str) -> int:
        """Move away the files of a trial that ended but cannot count; return how often that happened, including now."""
        place = self._put_aside(self.path / trial, f"{trial}.stopped")
        return int(place.name.rpartition("stopped")[2])

    def thrown_away(self, trial: str) -> int:
        """Return how often ``throw_away`` moved away the files of a trial or group."""
        return next(count for count in itertools.count() if not exists(self.path / f"{trial}.stopped{count + 1}"))

    def _put_aside(self, folder: Path, name: str) -> Path:
        places = (self.path / f"{name}{number}" for number in itertools.count(1))
        place = next(path for path in places if not exists(path))
        write_with_retry(lambda: folder.rename(place), folder)
        return place

    def mark_done_and_delete(self, trial: str) -> None:
        """Delete the files of a trial that is in trials.jsonl; a marker keeps a requeued job from repeating it."""
        if not exists(self.path):
            return
        mark = self.path / f"{trial}.done"
        write_with_retry(mark.touch, mark)
        for folder in (self.path / trial, *self.path.glob(f"{trial}.try*")):
            shutil.rmtree(folder, ignore_errors=True)

    def unmark_done(self, trial: str) -> None:
        """Remove the marker of ``mark_done_and_delete``, as the trial is not in trials.jsonl and runs again."""
        mark = self.path / f"{trial}.done"
        write_with_retry(lambda: mark.unlink(missing_ok=True), mark)

    def note_end(self, attempt: int, cause: str, *, excused: bool) -> None:
        """Record why an attempt ended early, and whether that excuses the trial that was running."""
        write_whole(self.path / f"ended-{attempt}", f"{'excused' if excused else 'blamed'} {cause}\n")

    def has_ended(self, attempt: int) -> bool:
        """Return whether the end of an attempt is recorded."""
        return exists(self.path / f"ended-{attempt}")

    def losses(self, trial: str) -> int:
        """Return how many attempts ended without an excuse while this unfinished trial was running."""
        attempts = {start.attempt for start in self.starts() if start.trial == trial}
        return sum(not _read(self.path / f"ended-{attempt}").startswith("excused") for attempt in attempts)

    def last_cause(self) -> str:
        """Return why the last attempt ended early, or UNKNOWN."""
        return _read(self.path / f"ended-{self.attempt}").strip().partition(" ")[2] or "UNKNOWN"


def block_folders(root: Path) -> list[BlockFolder]:
    """Return the folders of all blocks that a job was ever made for."""
    names = read_with_retry(lambda: [entry.name for entry in os.scandir(root)], root) or []
    return [BlockFolder(root / name) for name in sorted(names) if re.fullmatch(r"b[0-9]+", name)]


def _read(path: Path) -> str:
    try:
        body = read_with_retry(lambda: read_bytes(path), path)
    except RefusedFileError as error:
        raise unreadable_error(error, path) from error
    return (body or b"").decode(errors="replace")


def _document(adapter: TypeAdapter[Document], file: Path, **more: object) -> Document | None:
    """Return a document that a job wrote, with ``more`` fields; None if it is missing or damaged."""
    try:
        body = json.loads((read_with_retry(lambda: read_bytes(file), file) or b"").decode())
        return adapter.validate_python({**body, **more})
    except (RefusedFileError, ValueError, TypeError, RecursionError):
        return None
