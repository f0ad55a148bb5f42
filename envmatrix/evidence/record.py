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

from envmatrix.evidence.base import Flag, Float, Integer, Part, Text
from envmatrix.evidence.evidence import Evidence

DocumentPath = tuple[int | str, ...]
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
    steps: Integer = None


class Timing(Part):
    """Times of the monotonic clock, in nanoseconds; those of a program of the user's own are the last six."""

    startup_ns: Integer = None
    import_ns: Integer = None
    preparation_ns: Integer = None
    compile_ns: Integer = None
    warmup_ns: Integer = None
    first_step_ns: Integer = None
    steps_ns: Times = None
    epochs_ns: Times = None
    data_wait_ns: Integer = None
    training_ns: Integer = None
    look_s: Float = None
    turns: list[Turn] | None = None
    wall_ns: Integer = None
    probe_ns: Integer = None
    watch_ns: Integer = None
    paused_ns: Integer = None
    averaged_steps: Integer = None
    dropped_steps: Integer = None


class OwnMetric(Part):
    """The number that a program of the user's own reported."""

    name: Text = None
    value: Float = None
    better: Text = None
    unit: Text = None


class WorkCheck(Part):
    """A number that shows whether a program of the user's own did its work; ``tolerance`` is a fraction of it."""

    name: Text = None
    value: Float = None
    tolerance: Float = None


class Equality(Part):
    """Losses of a parallel way beside one process's; differences are relative."""

    steps: Integer = None
    losses: list[StrictFloat] | None = None
    one_process_losses: list[StrictFloat] | None = None
    largest_difference: Float = None
    tolerance: Float = None


class Collective(Part):
    """One size of a timed collective; times in seconds, rates in bytes a second."""

    bytes: Integer = None
    median_s: Float = None
    fastest_s: Float = None
    algorithm_bytes_per_s: Float = None
    bus_bytes_per_s: Float = None


class Result(Part):
    """What the work came to; ``accuracy`` from 0 to 1, ``sparsity`` the share of weights that are zero."""

    loss: Float = None
    accuracy: Float = None
    training_loss: Float = None
    parameters: Integer = None
    samples: Integer = None
    steps: Integer = None
    sparsity: Float = None
    effective_batch: Integer = None
    learning_rate: Float = None
    equality: Equality | None = None
    collective: list[Collective] | None = None
    output_bytes: Integer = None


class Operator(Part):
    """An aten operator under the profiler; ``share`` of the time of all."""

    name: Text = None
    calls: Integer = None
    self_ns: Integer = None
    total_ns: Integer = None
    share: Float = None


class Profile(Part):
    """Where a step's time went; nanoseconds over ``steps`` steps."""

    steps: Integer = None
    phases_ns: dict[StrictStr, StrictInt] | None = None
    operators: list[Operator] | None = None


class OtherThreads(Part):
    """The other threads of the process, summed: how many were busy, and how many ended meanwhile."""

    busy: Integer = None
    ended: Integer = None
    cpu_ns: Integer = None
    waited_ns: Integer = None


class Prices(Part):
    """What one event costs on this machine: nanoseconds."""

    minor_fault_ns: Float = None
    wake_up_ns: Float = None


class StepThread(Part):
    """What the thread that drives the steps did in ``wall_ns``; ``steps`` is None if that is a whole program."""

    wall_ns: Integer = None
    cpu_ns: Integer = None
    user_ns: Integer = None
    system_ns: Integer = None
    waited_ns: Integer = None
    minor_faults: Integer = None
    major_faults: Integer = None
    voluntary_switches: Integer = None
    involuntary_switches: Integer = None
    others: OtherThreads | None = None
    steps: Integer = None
    prices: Prices | None = None


class OnnxGraph(Part):
    """The model as an ONNX graph."""

    bytes: Integer = None
    nodes: Integer = None
    operators: dict[StrictStr, StrictInt] | None = None


class Record(Part):
    """A record. ``metrics`` is open: a program's own metric has its own name there.

    ``version`` is in every record that ``read_record`` takes; what is only looked at may lack it.
    """

    model_config = ConfigDict(json_schema_extra={"required": ["schema"]})

    version: Integer = Field(default=None, alias="schema")
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


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_VARIABLES: DocumentPath = ("evidence", "variables")
#: What the verdict on a trial follows from: a value of the wrong kind on the way there spoils the record.
_NEEDED_FOR_VERDICT: tuple[DocumentPath, ...] = (
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
    record = _read_part(Record, document, _NEEDED_FOR_VERDICT)
    if record.version is None:
        raise RecordError("schema: the schema number is missing")
    return record


def readable_record(document: object) -> Record | None:
    """Return what can be read of a document that was judged long ago, None: nothing.

    What is damaged, partial or from another version has fewer figures, and that is no error.
    """
    try:
        return _read_part(Record, document, ())
    except (RecordError, RecursionError):
        return None


def read_evidence(document: object) -> Evidence:
    """Return the evidence in ``document``; a value of the wrong kind is left out."""
    return _read_part(Evidence, document, ())


def _read_part(model: type[Read], document: object, needed: Sequence[DocumentPath]) -> Read:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        readable = _with_readable_keys(document)
        if readable != document:
            return _read_part(model, readable, needed)
        problems = [(problem["loc"], problem["msg"]) for problem in error.errors(include_url=False)]
    for place, message in problems:
        if not isinstance(document, dict) or _affects_needed(place, needed):
            raise RecordError(f"{'.'.join(map(str, place)) or 'the record'}: {message}")
    cleaned = document
    for place in dict.fromkeys(_data_path(document, place) for place, _ in problems):
        cleaned = _remove_at(cleaned, place)
    try:
        return model.model_validate(cleaned)
    except ValidationError as error:
        raise RecordError(str(error)) from error


def _with_readable_keys(body: object) -> object:
    """Return ``body`` without entries whose names are no text: half a character, as a name that is no UTF-8 has."""
    if isinstance(body, list):
        return [_with_readable_keys(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {key: _with_readable_keys(value) for key, value in body.items() if not _LONE_SURROGATE.search(str(key))}


def _data_path(document: object, place: DocumentPath) -> DocumentPath:
    """Return ``place`` without the words that pydantic adds for the choices of a union."""
    for depth, part in enumerate(place):
        children = (
            document if isinstance(document, dict) else dict(enumerate(document)) if isinstance(document, list) else {}
        )
        if part not in children:
            return place[:depth]
        document = children[part]
    return place


def _affects_needed(place: DocumentPath, needed: Sequence[DocumentPath]) -> bool:
    """Whether ``place`` lies on the way to a needed one (any item of a list is meant by its first), or in it."""
    first_items = tuple(0 if isinstance(part, int) else part for part in place)
    return any(first_items == path[: len(first_items)] or first_items[:-1] == path == _VARIABLES for path in needed)


def _remove_at(body: object, place: DocumentPath) -> object:
    """Return ``body`` without what stands at ``place``; a list with a hole would be a lie, so it goes as a whole."""
    key, inner_path = place[0], place[1:]
    if isinstance(body, list) and isinstance(key, int):
        return [_remove_at(item, inner_path) if index == key else item for index, item in enumerate(body)]
    if not isinstance(body, dict) or key not in body:
        return body
    remaining = {name: value for name, value in body.items() if name != key}
    return (
        {**remaining, key: _remove_at(body[key], inner_path)}
        if _can_remove_within(body[key], inner_path)
        else remaining
    )


def _can_remove_within(inner: object, inner_path: DocumentPath) -> bool:
    """Whether something smaller than ``inner`` can be taken out of it: an entry of an object, or of one in a list."""
    if isinstance(inner, dict):
        return bool(inner_path) and inner_path[0] in inner
    return (
        isinstance(inner, list)
        and len(inner_path) > 1
        and isinstance(inner_path[0], int)
        and _can_remove_within(inner[inner_path[0]], inner_path[1:])
    )
