"""results/RUN/: run.json written once, trials.jsonl appended and fsynced trial by trial, nothing ever rewritten."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from envmatrix.errors import StoreError, Where
from envmatrix.plan import Arm, Plan, Slot, arm_name
from envmatrix.store import shape

SCHEMA = 1
Outcome = Literal["ok", "failed", "invalid", "timed_out", "skipped"]


@dataclass(frozen=True)
class Trial:
    """One line of trials.jsonl. ``record`` is the document of docs/record.md, or None when there is none.

    ``reason`` says why the outcome is not ok. ``wall_s`` is start to end as the host saw it, in seconds;
    ``started`` is seconds since the epoch.
    """

    trial: str
    block: int
    position: int
    environment: str
    workload: str
    engine: str
    outcome: Outcome
    reason: str = ""
    wall_s: float | None = None
    started: float | None = None
    node: str = ""
    pad: int = 0
    record: Mapping[str, Any] | None = None

    @property
    def arm(self) -> str:
        """Name of the arm this trial belongs to."""
        return f"{self.environment}:{self.workload}@{self.engine}"


@dataclass(frozen=True)
class Run:
    """run.json: the plan and all that is needed to understand and repeat it.

    ``environments`` maps the name of each environment to its levels, variables (None: absent), preload, claims,
    image and digest (``environment.to_json``); ``workloads`` to options or command; ``images`` 'image@engine' to
    its facts; ``skipped`` an arm's name to the reason why it cannot be run here; ``design`` is the design's entry
    with its limits; ``host`` is the machine; ``versions`` are of this tool.
    """

    name: str
    created: str
    plan: Plan
    matrix_digest: str
    bench_digest: str
    host: Mapping[str, Any]
    versions: Mapping[str, str]
    environments: Mapping[str, Mapping[str, Any]]
    workloads: Mapping[str, Mapping[str, Any]]
    design: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "here"
    matrix_text: str = ""
    command: tuple[str, ...] = ()


def trial_of(slot: Slot, outcome: Outcome, reason: str = "", **more: Any) -> Trial:
    """Make the trial of a slot."""
    arm = slot.arm
    return Trial(
        slot.trial, slot.block, slot.position, arm.environment, arm.workload, arm.engine, outcome, reason,
        pad=slot.pad, **more,
    )  # fmt: skip


def run_to_json(run: Run) -> dict[str, Any]:
    """Return the document of run.json."""
    return {"schema": SCHEMA, **asdict(run)}


def _plan_from_json(body: Mapping[str, Any]) -> Plan:
    arms = tuple(Arm(**arm) for arm in body["arms"])
    names = Counter(arm_name(arm.environment, arm.workload, arm.engine) for arm in arms)  # as trials name them
    twice = sorted(name for name, times in names.items() if times > 1)
    if twice:
        raise TypeError(f"plan.arms holds {', '.join(twice)} more than once")
    return Plan(**{**body, "arms": arms})


def run_from_json(body: dict[str, Any], file: Path) -> Run:
    """Read run.json's document; a newer schema or a missing key is a StoreError that names the file."""
    check_schema(body, file)
    try:
        shape.RUN(body, "")
        fields = {key: value for key, value in body.items() if key in Run.__dataclass_fields__}
        fields["plan"] = _plan_from_json(fields["plan"])
        fields["command"] = tuple(fields.get("command", ()))
        return Run(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"this is no run.json that envmatrix wrote ({error})",
            where=Where(file),
            remedy="restore it from a copy",
        ) from error


def check_schema(body: Any, file: Path, line: int | None = None) -> None:
    """Refuse a document that is no object, or that a newer envmatrix wrote."""
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(schema, int):
        raise StoreError("no schema number: not a file that envmatrix wrote", where=Where(file, line))
    if schema > SCHEMA:
        raise StoreError(
            f"schema {schema} is newer than this envmatrix knows ({SCHEMA})",
            where=Where(file, line), remedy="upgrade envmatrix; the file was left as it is",
        )  # fmt: skip


_REMEDIES = {
    errno.ENOSPC: "free some space, then `envmatrix resume`",
    errno.EDQUOT: "your quota there is full: free some space, then `envmatrix resume`",
    errno.EACCES: "check who may write there",
    errno.ESTALE: "the file system that holds it went away: when it is back, `envmatrix resume`",
}


def _os_error(error: OSError, path: Path) -> StoreError:
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StoreError(f"{error.strerror}", where=Where(path), remedy=remedy)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or the old one: temporary file, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _os_error(error, path) from error


class RunFolder:
    """The folder of one run. One writer at a time: ``lock`` refuses a second one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials_file = path / "trials.jsonl"
        self.run_file = path / "run.json"
        self._lock: int | None = None

    @property
    def logs(self) -> Path:
        """Folder of the trials' logs."""
        return self.path / "logs"

    def create(self, run: Run) -> None:
        """Make the folder and write run.json."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _os_error(error, self.path) from error
        write_whole(self.run_file, json.dumps(run_to_json(run), indent=1) + "\n")

    def lock(self) -> None:
        """Hold the folder until ``unlock`` or the end of this process; StoreError when another one holds it."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise StoreError(
                "another envmatrix is writing to this run",
                where=Where(self.path),
                remedy="wait until it has ended",
            ) from error
        self._lock = handle

    def unlock(self) -> None:
        """Let another writer in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> Run:
        """Read run.json."""
        return run_from_json(read_json(self.run_file), self.run_file)

    def append(self, trial: Trial) -> None:
        """Append one trial and make sure it is on disk before returning."""
        line = json.dumps({"schema": SCHEMA, **asdict(trial)}, separators=(",", ":")) + "\n"
        try:
            with self.trials_file.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _os_error(error, self.trials_file) from error

    def mend(self) -> bool:
        """Cut off a last line that a crash left half-written; say whether there was one."""
        if not self.trials_file.exists():
            return False
        with self.trials_file.open("rb+") as file:
            body = file.read()
            whole = body.rfind(b"\n") + 1
            if whole == len(body):
                return False
            with (self.path / "trials.half-written").open("ab") as aside:
                aside.write(body[whole:] + b"\n")
            file.truncate(whole)
            os.fsync(file.fileno())
        return True

    def trials(self) -> Iterator[Trial]:
        """Yield the trials in the order they ran; a half-written last line is passed over."""
        if not self.trials_file.exists():
            return
        with self.trials_file.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                yield trial_from_line(line, self.trials_file, number)


def read_json(file: Path) -> Any:
    """Read a JSON file; a StoreError says what is wrong with it."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _os_error(error, file) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"not readable as JSON ({error})", where=Where(file), remedy="restore it from a copy"
        ) from error


def trial_from_line(line: str, file: Path, number: int) -> Trial:
    """Read one line of trials.jsonl."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"this line is damaged ({error})",
            where=Where(file, number),
            remedy="restore the file, or remove the line",
        ) from error
    check_schema(body, file, number)
    try:
        shape.TRIAL(body, "")
        return Trial(**{key: value for key, value in body.items() if key in Trial.__dataclass_fields__})
    except TypeError as error:
        raise StoreError(f"this line is no trial ({error})", where=Where(file, number)) from error


def without_record(trial: Trial) -> Trial:
    """Return the trial without its raw record (for reading very many)."""
    return replace(trial, record=None)
