"""Models of the record that a trial's process writes (docs/record.md), and functions to read it."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, TypeVar

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

from envmatrix.evidence.evidence_models import Evidence
from envmatrix.evidence.model_base import Flag, Float, Integer, Part, Text

DocumentPath = tuple[int | str, ...]
Times = list[StrictInt] | None
Read = TypeVar("Read", bound=Part)


class Bench(Part):
    """The version of ``bench/`` that ran."""

    digest: Text = None


class Work(Part):
    """The workload: all options of the built-in benchmark, or the command and its metric."""

    digest: Text = None
    options: dict[StrictStr, SkipValidation[JsonValue]] | None = None


class Data(Part):
    """The data set; ``stand_in``: generated data, because the real data set was unavailable."""

    name: Text = None
    stand_in: Flag = None
    digest: Text = None


class Turn(Part):
    """An interleaved turn: times of its uncounted first steps, and the number of counted steps after them."""

    apart_ns: Times = None
    steps: Integer = None


class Stretch(Part):
    """A stretch of steps after a trial: times of its uncounted first steps, and of the counted ones after them."""

    apart_ns: Times = None
    counted_ns: Times = None


class Later(Part):
    """The steps after a trial, or of a user's program: means, and all times of ``stretches``.

    ``after_ns`` is the time of the steps before them (bench/early_and_late_steps.py).
    """

    watched_ns: Integer = None
    trial_step_ns: Float = None
    late_step_ns: Float = None
    halves_step_ns: list[Float] | None = None
    after_ns: Integer = None
    stretches: list[Stretch] | None = None


class Timing(Part):
    """Times in nanoseconds (monotonic clock); the last six are those of a user's program."""

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
    later: Later | None = None
    wall_ns: Integer = None
    probe_ns: Integer = None
    watch_ns: Integer = None
    paused_ns: Integer = None
    averaged_steps: Integer = None
    dropped_steps: Integer = None


class OwnMetric(Part):
    """A number reported by a user's program."""

    name: Text = None
    value: Float = None
    better: Text = None
    unit: Text = None


class WorkCheck(Part):
    """A number that shows whether a user's program did its work; ``tolerance`` is a fraction of it."""

    name: Text = None
    value: Float = None
    tolerance: Float = None


class Equality(Part):
    """Losses of a parallel run compared with one process; differences are relative."""

    steps: Integer = None
    losses: list[StrictFloat] | None = None
    one_process_losses: list[StrictFloat] | None = None
    largest_difference: Float = None
    tolerance: Float = None


class Collective(Part):
    """A timed collective operation at one message size; times in seconds, rates in bytes per second."""

    bytes: Integer = None
    median_s: Float = None
    fastest_s: Float = None
    algorithm_bytes_per_s: Float = None
    bus_bytes_per_s: Float = None


class Result(Part):
    """The result of the work; ``accuracy`` is from 0 to 1, ``sparsity`` the fraction of weights that are zero."""

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
    """An aten operator in the profile; ``share`` is its fraction of the time of all."""

    name: Text = None
    calls: Integer = None
    self_ns: Integer = None
    total_ns: Integer = None
    share: Float = None


class GpuTime(Part):
    """A GPU's nanoseconds over the profiled steps, in parts that add up."""

    kernel_ns: Integer = None
    copy_ns: Integer = None
    collective_ns: Integer = None
    gap_ns: Integer = None


class Profile(Part):
    """A profile of the steps; nanoseconds, and system calls of memory by name, over ``steps`` steps each."""

    steps: Integer = None
    phases_ns: dict[StrictStr, StrictInt] | None = None
    operators: list[Operator] | None = None
    gpu: GpuTime | None = None
    memory_calls: dict[StrictStr, StrictInt] | None = None


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
    memory_call_ns: Float = None


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
    dtlb_misses: Integer = None
    cache_misses: Integer = None
    others: OtherThreads | None = None
    steps: Integer = None
    prices: Prices | None = None


class OnnxGraph(Part):
    """Size and operators of the model as an ONNX graph."""

    bytes: Integer = None
    nodes: Integer = None
    operators: dict[StrictStr, StrictInt] | None = None


class Record(Part):
    """A record. ``metrics`` accepts any key: a user's program names its own metrics.

    ``read_record`` requires ``version``; for documents that are only displayed it is optional.
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
    """A document that is not a valid record, or has an error in a value needed to judge its trial."""


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_VARIABLES: DocumentPath = ("evidence", "variables")
#: Values needed to judge a trial: one of the wrong kind on their path invalidates the record.
_NEEDED_FOR_VERDICT: tuple[DocumentPath, ...] = (
    ("schema",),
    ("bench", "digest"),
    ("skipped",),
    _VARIABLES,
    ("evidence", "parallel", "ranks", 0, "evidence_differs"),
)


def read_record(document: object) -> Record:
    """Return the record in ``document``. Raises RecordError if it is invalid or its trial cannot be judged.

    Other values of the wrong kind are dropped, as if unreadable, so that an unusual kernel or a newer ``bench/`` does
    not invalidate a trial.
    """
    record = _read_part(Record, document, _NEEDED_FOR_VERDICT)
    if record.version is None:
        raise RecordError("schema: the schema number is missing")
    return record


def readable_record(document: object) -> Record | None:
    """Return the readable part of a document of an earlier trial; None if there is none.

    Damaged or partial documents, and those of other versions, have fewer values; that is not an error.
    """
    try:
        return _read_part(Record, document, ())
    except (RecordError, RecursionError):
        return None


def read_evidence(document: object) -> Evidence:
    """Return the evidence in ``document``; values of the wrong kind are dropped."""
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
    cleaned = copy.deepcopy(document)
    for holder, key in [_find_value(cleaned, place) for place, _ in problems]:
        holder.pop(key, None)
    try:
        return model.model_validate(cleaned)
    except ValidationError as error:
        raise RecordError(str(error)) from error


def _with_readable_keys(body: object) -> object:
    """Return ``body`` without entries whose keys contain lone surrogates (from names that are not UTF-8)."""
    if isinstance(body, list):
        return [_with_readable_keys(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {key: _with_readable_keys(value) for key, value in body.items() if not _LONE_SURROGATE.search(str(key))}


def _affects_needed(place: DocumentPath, needed: Sequence[DocumentPath]) -> bool:
    """Return whether ``place`` is in a needed path, or contains one; the index of a list item is ignored."""
    first_items = tuple(0 if isinstance(part, int) else part for part in place)
    return any(first_items == path[: len(first_items)] or first_items[:-1] == path == _VARIABLES for path in needed)


def _find_value(document: Any, place: DocumentPath) -> tuple[dict[str, object], str]:
    """Return the object with the value at ``place``, and its key; a list is one value, so that it gets no gaps.

    Pydantic ends a place with the names of union members, which are not in the document.
    """
    holder, key, value = document, "", document
    for part in place:
        if isinstance(value, dict) and part in value:
            holder, key, value = value, str(part), value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            break
    return holder, key
