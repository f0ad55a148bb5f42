"""The content of one line of trials.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from envmatrix.errors import StoreError, Where
from envmatrix.evidence.evidence_models import System
from envmatrix.evidence.trial_record import Record, readable_record
from envmatrix.plan import Slot, arm_name
from envmatrix.results.document_checks import first_mistake, locate_value, require_exact_schema
from envmatrix.system.json_parsing import parse_json_line

SCHEMA = 2
#: The beginning of a line that envmatrix wrote.
_START = '{"schema":'
_RESTORE = "restore the file, or remove the line"
Outcome = Literal["ok", "failed", "invalid", "timed_out", "skipped"]


@dataclass(frozen=True)
class NodeCheck:
    """The state of a node before a block, while its job was idle: all activity came from other programs.

    ``busy`` is the share of all CPUs used by others; ``free_bytes`` is the available memory. ``throttled`` counts
    thermal throttling of processors since the node started. ``others`` names programs that were running.
    """

    load_1m: float | None = None
    free_bytes: int | None = None
    busy: float | None = None
    throttled: int | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrialFacts:
    """The facts that the host records about a trial, in addition to the trial's own record.

    ``reason`` explains an outcome other than ok; ``unproven`` lists promises of the environment that were not verified.
    ``wall_s`` is the time from start to end in seconds; ``started`` is seconds since the epoch. ``ended_before`` counts
    leftover processes of earlier trials that were ended before the start (None: not checked). ``repeated`` counts
    discarded attempts: the trial was stopped (SIGSTOP, a suspended job) or could not write its folder. ``node_checks``
    are the checks of its nodes before the block, in node order (empty: not checked). ``together`` counts the
    interleaved trials, including this one (None: run separately). ``waves`` is the number of batches they were split
    into because memory was short; references are in every batch (None: one batch). ``later_s`` is how long its
    process went on after the trial (None: it did not), and ``later_failed`` why it ended too early. Unknown keys are
    ignored. It is a plain dataclass, as a run can have very many.
    """

    trial: str
    block: int
    position: int
    environment: str
    workload: str
    engine: str
    outcome: Outcome
    reason: str = ""
    unproven: tuple[str, ...] = ()
    wall_s: float | None = None
    started: float | None = None
    node: str = ""
    padding: int = 0
    ended_before: int | None = None
    repeated: int = 0
    node_checks: tuple[NodeCheck, ...] = ()
    together: int | None = None
    waves: int | None = None
    later_s: float | None = None
    later_failed: str = ""
    schema: Annotated[int, Field(le=SCHEMA)] = SCHEMA

    @property
    def arm(self) -> str:
        """The name of the arm this trial belongs to."""
        return arm_name(self.environment, self.workload, self.engine)


@dataclass(frozen=True)
class Reading(TrialFacts):
    """A trial for reports, with the readable part of its record and not the original document.

    ``conditions`` are the values of the system that differ between trials, if its ``record`` shares the others with
    trials of the same file, and lacks these.
    """

    record: Record | None = None
    conditions: System | None = field(default=None, init=False)


@dataclass(frozen=True)
class Trial(TrialFacts):
    """One trial. ``document`` is the record that its process wrote (docs/record.md), or None.

    On disk the document is called ``record``; rewriting a line keeps all of it. ``reason`` explains an outcome other
    than ok.
    """

    document: Annotated[Mapping[str, object] | None, Field(alias="record")] = None

    @cached_property
    def record(self) -> Record | None:
        """The readable part of the document; damaged parts are left out without an error."""
        return None if self.document is None else readable_record(self.document)

    @property
    def conditions(self) -> System | None:
        """The values of the system, all of which are in the record."""
        return (self.record and self.record.evidence and self.record.evidence.system) or None

    def line(self) -> str:
        """Return the line for trials.jsonl in plain ASCII, since a program's output need not be UTF-8."""
        return json.dumps({"schema": SCHEMA, **_TRIAL.dump_python(self, by_alias=True)}, separators=(",", ":"))


_TRIAL = TypeAdapter(Trial)


def trial_of(
    slot: Slot, outcome: Outcome, reason: str = "", *, wall_s: float | None = None, started: float | None = None,
    node: str = "", document: Mapping[str, object] | None = None,
) -> Trial:  # fmt: skip
    """Create the trial of a slot."""
    arm = slot.arm
    return Trial(
        slot.trial, slot.block, slot.position, arm.environment, arm.workload, arm.engine, outcome, reason,
        wall_s=wall_s, started=started, node=node, padding=slot.padding, document=document,
    )  # fmt: skip


def trial_from_line(line: str, file: Path, number: int) -> Trial:
    """Parse one line of trials.jsonl."""
    if line.startswith(_START):
        try:
            return _TRIAL.validate_json(line)
        except ValidationError:  # parsed again below: readable message, invalid UTF-8 accepted
            pass
    try:
        document = require_exact_schema(parse_json_line(line, file, number, _RESTORE), file, SCHEMA, number)
        return _TRIAL.validate_python(document)
    except ValidationError as error:
        path, message = first_mistake(error)
        where = Where(file, number, locate_value(line, file, path).column or 1)
        raise StoreError(f"this line is not a trial: {message}", where=where, remedy=_RESTORE) from error
