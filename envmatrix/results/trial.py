"""A line of trials.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from envmatrix.errors import StoreError, Where
from envmatrix.plan import Slot, arm_name
from envmatrix.evidence.record import Record, readable_record
from envmatrix.results.document_checks import check_schema, first_mistake, locate_value
from envmatrix.system.json_text import parse_json_line

SCHEMA = 2
#: What a line begins with that envmatrix wrote.
_START = '{"schema":'
_RESTORE = "restore the file, or remove the line"
Outcome = Literal["ok", "failed", "invalid", "timed_out", "skipped"]


@dataclass(frozen=True)
class NodeCheck:
    """What was seen of a node before a block, while its job did nothing: all that worked there was somebody else's.

    ``busy`` is the share of all CPUs that others used, ``free_bytes`` the memory that could be had, ``throttled`` how
    often a processor was slowed for its heat since the node started, ``others`` names of programs that ran then.
    """

    load_1m: float | None = None
    free_bytes: int | None = None
    busy: float | None = None
    throttled: int | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrialFacts:
    """What the host says of a trial, beside its record.

    ``reason`` says why the outcome is not ok, ``unproven`` what its environment promises and nobody saw.
    ``wall_s`` is start to end as the host saw it, in seconds;
    ``started`` is seconds since the epoch; ``ended_before`` how many processes of earlier trials still ran and were
    ended before it began (None: nobody looked); ``repeated`` how often it ran before and was thrown away, because it
    had been stopped (SIGSTOP, a suspended job) or its folder could not be written; ``node_checks`` what was seen of
    its nodes, in their order, before its block (none: nobody looked); ``together`` how many trials, itself among
    them, were alive and took turns (None: it ran alone); ``waves`` into how many smaller groups these were parted for
    want of memory, the references alive in all of them (None: one group). Keys that are not known are passed over;
    A plain dataclass, as there may be very many.
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
    schema: Annotated[int, Field(le=SCHEMA)] = SCHEMA

    @property
    def arm(self) -> str:
        """Name of the arm this trial belongs to."""
        return arm_name(self.environment, self.workload, self.engine)


@dataclass(frozen=True)
class Reading(TrialFacts):
    """A trial as reports read it: what can be read of its record, and not how that was written."""

    record: Record | None = None


@dataclass(frozen=True)
class Trial(TrialFacts):
    """One trial. ``document`` is its record as the process wrote it (docs/record.md), None when there is none.

    On disk the document is called ``record``, and nothing of it is lost when a line is written again. ``reason`` says
    why the outcome is not ok.
    """

    document: Annotated[Mapping[str, object] | None, Field(alias="record")] = None

    @cached_property
    def record(self) -> Record | None:
        """What can be read of the document: a damaged one says less, and that is no error."""
        return None if self.document is None else readable_record(self.document)

    def line(self) -> str:
        """Return its line, plain ASCII: what a program said of itself need not be UTF-8."""
        return json.dumps({"schema": SCHEMA, **_TRIAL.dump_python(self, by_alias=True)}, separators=(",", ":"))


_TRIAL = TypeAdapter(Trial)
_READING = TypeAdapter(Reading)


def trial_of(
    slot: Slot,
    outcome: Outcome,
    reason: str = "",
    *,
    wall_s: float | None = None,
    started: float | None = None,
    node: str = "",
    document: Mapping[str, object] | None = None,
) -> Trial:
    """Make the trial of a slot."""
    arm = slot.arm
    return Trial(
        trial=slot.trial, block=slot.block, position=slot.position,
        environment=arm.environment, workload=arm.workload, engine=arm.engine, outcome=outcome, reason=reason,
        wall_s=wall_s, started=started, node=node, padding=slot.padding, document=document,
    )  # fmt: skip


def trial_from_line(line: str, file: Path, number: int) -> Trial:
    """Read one line of trials.jsonl."""
    if line.startswith(_START):
        try:
            return _TRIAL.validate_json(line)
        except ValidationError:  # said below in words; what is no UTF-8 in a text is no mistake there
            pass
    try:
        document = check_schema(parse_json_line(line, file, number, _RESTORE), file, SCHEMA, number)
        return _TRIAL.validate_python(document)
    except ValidationError as error:
        path, message = first_mistake(error)
        where = Where(file, number, locate_value(line, file, path).column or 1)
        raise StoreError(f"this line is not a trial: {message}", where=where, remedy=_RESTORE) from error


def reading_from_line(line: str, file: Path, number: int) -> Reading | Trial:
    """Read one line of trials.jsonl for its figures, in one pass; a Trial where something in its record is odd."""
    if line.startswith(_START):
        try:
            return _READING.validate_json(line)
        except ValidationError:  # what is odd is left out below, or said in words
            pass
    return trial_from_line(line, file, number)
