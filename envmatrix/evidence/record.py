"""The record that a trial's process writes (docs/record.md), each part defined once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    SkipValidation,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from envmatrix.evidence.base import Flag, Part, Real, Text, Whole
from envmatrix.evidence.evidence import Evidence

Place = tuple[int | str, ...]
Times = list[StrictInt] | None
Read = TypeVar("Read", bound=Part)


class Bench(Part):
    """Which ``bench/`` ran."""

    digest: Text = None


class Work(Part):
    """What was run: all options of the built-in benchmark, or the command and its metric."""

    digest: Text = None
    options: dict[StrictStr, SkipValidation[JsonValue]] | None = None


class Data(Part):
    """The data set; ``stand_in``: made here, because the real one could not be had."""

    name: Text = None
    stand_in: Flag = None
    digest: Text = None


class Turn(Part):
    """A turn: times of the steps that are set apart, and how many that count followed (``schedule: turns``)."""

    apart_ns: Times = None
    steps: Whole = None


class Timing(Part):
    """Times of the monotonic clock, in nanoseconds; those of a program of the user's own are the last six."""

    startup_ns: Whole = None
    import_ns: Whole = None
    preparation_ns: Whole = None
    compile_ns: Whole = None
    warmup_ns: Whole = None
    first_step_ns: Whole = None
    steps_ns: Times = None
    epochs_ns: Times = None
    data_wait_ns: Whole = None
    training_ns: Whole = None
    look_s: Real = None
    turns: list[Turn] | None = None
    wall_ns: Whole = None
    probe_ns: Whole = None
    watch_ns: Whole = None
    paused_ns: Whole = None
    averaged_steps: Whole = None
    dropped_steps: Whole = None


class OwnMetric(Part):
    """The number that a program of the user's own reported."""

    name: Text = None
    value: Real = None
    better: Text = None
    unit: Text = None


class WorkCheck(Part):
    """A number that shows whether a program of the user's own did its work; ``tolerance`` is a fraction of it."""

    name: Text = None
    value: Real = None
    tolerance: Real = None


class Equality(Part):
    """Losses of a parallel way beside one process's; differences are relative."""

    steps: Whole = None
    losses: list[StrictFloat] | None = None
    one_process_losses: list[StrictFloat] | None = None
    largest_difference: Real = None
    tolerance: Real = None


class Collective(Part):
    """One size of a timed collective; times in seconds, rates in bytes a second."""

    bytes: Whole = None
    median_s: Real = None
    fastest_s: Real = None
    algorithm_bytes_per_s: Real = None
    bus_bytes_per_s: Real = None


class Result(Part):
    """What the work came to; ``accuracy`` from 0 to 1, ``sparsity`` the share of weights that are zero."""

    loss: Real = None
    accuracy: Real = None
    training_loss: Real = None
    parameters: Whole = None
    samples: Whole = None
    steps: Whole = None
    sparsity: Real = None
    effective_batch: Whole = None
    learning_rate: Real = None
    equality: Equality | None = None
    collective: list[Collective] | None = None
    output_bytes: Whole = None


class Operator(Part):
    """An aten operator under the profiler; ``share`` of the time of all."""

    name: Text = None
    calls: Whole = None
    self_ns: Whole = None
    total_ns: Whole = None
    share: Real = None


class Profile(Part):
    """Where a step's time went; nanoseconds over ``steps`` steps."""

    steps: Whole = None
    phases_ns: dict[StrictStr, StrictInt] | None = None
    operators: list[Operator] | None = None


class OtherThreads(Part):
    """The other threads of the process, summed: how many were busy, and how many ended meanwhile."""

    busy: Whole = None
    ended: Whole = None
    cpu_ns: Whole = None
    waited_ns: Whole = None


class Prices(Part):
    """What one event costs on this machine: nanoseconds."""

    minor_fault_ns: Real = None
    wake_up_ns: Real = None


class StepThread(Part):
    """What the thread that drives the steps did in ``wall_ns``; ``steps`` is None if that is a whole program."""

    wall_ns: Whole = None
    cpu_ns: Whole = None
    user_ns: Whole = None
    system_ns: Whole = None
    waited_ns: Whole = None
    minor_faults: Whole = None
    major_faults: Whole = None
    voluntary_switches: Whole = None
    involuntary_switches: Whole = None
    others: OtherThreads | None = None
    steps: Whole = None
    prices: Prices | None = None


class OnnxGraph(Part):
    """The model as an ONNX graph."""

    bytes: Whole = None
    nodes: Whole = None
    operators: dict[StrictStr, StrictInt] | None = None


class Record(Part):
    """A record. ``metrics`` is open: a program's own metric has its own name there.

    ``version`` is in every record that ``read_record`` takes; what is only looked at may lack it.
    """

    model_config = ConfigDict(json_schema_extra={"required": ["schema"]})

    version: Whole = Field(default=None, alias="schema")
    bench: Bench | None = None
    workload: Work | None = None
    data: Data | None = None
    timing: Timing | None = None
    metrics: dict[StrictStr, StrictInt | StrictFloat | StrictBool | None] | None = None
    metric: OwnMetric | None = None
    more_metrics: list[OwnMetric] | None = None
    checks: list[WorkCheck] | None = None
    result: Result | None = None
    profile: Profile | None = None
    step_thread: StepThread | None = None
    onnx: OnnxGraph | None = None
    skipped: Text = None
    evidence: Evidence | None = None


class RecordError(ValueError):
    """A record is none: something is wrong in it that the verdict on its trial follows from."""


_HALF = re.compile("[\ud800-\udfff]")
_VARIABLES: Place = ("evidence", "variables")
#: What the verdict on a trial follows from: a value of the wrong kind on the way there spoils the record.
_VERDICT: tuple[Place, ...] = (
    ("schema",),
    ("bench", "digest"),
    ("skipped",),
    _VARIABLES,
    ("evidence", "parallel", "ranks", 0, "evidence_differs"),
)


def read_record(document: object) -> Record:
    """Return the record in ``document``. Raises RecordError when it is none, or a verdict cannot be made from it.

    Elsewhere a value of the wrong kind is left out, as if it could not have been read: a strange kernel or a newer
    ``bench/`` does not make a trial worthless.
    """
    record = _read(Record, document, _VERDICT)
    if record.version is None:
        raise RecordError("schema: there is no schema number")
    return record


def readable_record(document: object) -> Record | None:
    """Return what can be read of a document that was judged long ago, None: nothing.

    What is damaged, partial or from another version has fewer figures, and that is no error.
    """
    try:
        return _read(Record, document, ())
    except (RecordError, RecursionError):
        return None


def read_evidence(document: object) -> Evidence:
    """Return the evidence in ``document``; a value of the wrong kind is left out."""
    return _read(Evidence, document, ())


def _read(model: type[Read], document: object, needed: Sequence[Place]) -> Read:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        readable = _with_readable_keys(document)
        if readable != document:
            return _read(model, readable, needed)
        problems = [(problem["loc"], problem["msg"]) for problem in error.errors(include_url=False)]
    for place, words in problems:
        if not isinstance(document, dict) or _spoils(place, needed):
            raise RecordError(f"{'.'.join(map(str, place)) or 'the record'}: {words}")
    body = document
    for place in dict.fromkeys(_real(document, place) for place, _ in problems):
        body = _without(body, place)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RecordError(str(error)) from error


def _with_readable_keys(body: object) -> object:
    """Return ``body`` without entries whose names are no text: half a character, as a name that is no UTF-8 has."""
    if isinstance(body, list):
        return [_with_readable_keys(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {key: _with_readable_keys(value) for key, value in body.items() if not _HALF.search(str(key))}


def _real(body: object, place: Place) -> Place:
    """Return ``place`` without the words that pydantic adds for the choices of a union."""
    for depth, part in enumerate(place):
        known = body if isinstance(body, dict) else dict(enumerate(body)) if isinstance(body, list) else {}
        if part not in known:
            return place[:depth]
        body = known[part]
    return place


def _spoils(place: Place, needed: Sequence[Place]) -> bool:
    """Whether ``place`` lies on the way to a needed one (any item of a list is meant by its first), or in it."""
    first = tuple(0 if isinstance(part, int) else part for part in place)
    return any(first == path[: len(first)] or first[:-1] == path == _VARIABLES for path in needed)


def _without(body: object, place: Place) -> object:
    """Return ``body`` without what stands at ``place``; a list with a hole would be a lie, so it goes as a whole."""
    key, rest = place[0], place[1:]
    if isinstance(body, list) and isinstance(key, int):
        return [_without(item, rest) if index == key else item for index, item in enumerate(body)]
    if not isinstance(body, dict) or key not in body:
        return body
    kept = {name: value for name, value in body.items() if name != key}
    return {**kept, key: _without(body[key], rest)} if _goes_on(body[key], rest) else kept


def _goes_on(inner: object, rest: Place) -> bool:
    """Whether something smaller than ``inner`` can be taken out of it: an entry of an object, or of one in a list."""
    if isinstance(inner, dict):
        return bool(rest) and rest[0] in inner
    return isinstance(inner, list) and len(rest) > 1 and isinstance(rest[0], int) and _goes_on(inner[rest[0]], rest[1:])
