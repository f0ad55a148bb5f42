"""Which number of a program's output says how fast it was, and the pattern that reads the same number of later runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from envmatrix.matrix.patterns import Text, pattern_of
from envmatrix.matrix.printed import A_TIME, A_TIME_OF, BYTES, STEPS, Reading, is_eval, readings
from envmatrix.system.bench_options import quantities

#: Two numbers this close are one, printed twice.
_SAME = 0.01
#: Of more lines these many at both ends are read.
_ENDS = (500, 1500)
#: A number of more bars than these is one of whatever is counted, such as requests.
_MOST_BARS = 3
#: So much later than the wall time may a program's own clock say that it took.
_CLOCK_S, _CLOCK = 0.1, 1.1
_BAR = re.compile(r"(?P<done>\d+)/(?P<all>\d+) \[(?P<clock>[\d:]+)<")
#: Numbers that are set rather than counted; of so many values at most, one run is a sweep.
_SET = re.compile(r"\b(?:size|bs|len|length|dim|threads?|workers?|streams?|concurrency)$")
_MOST_SET = 20
#: What Keras prints before the bar of an epoch.
_EPOCH = re.compile(r"Epoch \d+/\d+")
#: Speeds that differ by more than this are of two things, if other signs are there.
_ANOTHER = 1.5
_PYTEST_BENCHMARK = re.compile(r"^-+ benchmark[^\n]*: \d+ tests? -+$", re.MULTILINE)

_COUNTED = re.compile(r"^(?P<words>[A-Za-z\[(#][A-Za-z \[(#:=_-]*)(?P<number>[0-9]+)\b(?!\.[0-9])", re.MULTILINE)
#: What stands where the middle of a long output was left out (bench/command.py).
_CUT = re.compile(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n")
#: Fewer lines that count are no steps: a program prints as many epochs.
_FEWEST_STEPS = 20


@dataclass(frozen=True)
class Throughput:
    """A regular expression that finds one number of an output, what it is called there, its last value and its unit.

    ``line`` is the last one that has it, and ``span`` where on that; ``note`` says what else was printed.
    """

    regex: str
    label: str
    value: float
    unit: str
    better: str
    line: str
    span: tuple[int, int]
    note: str = ""


def candidates(output: str, wall_s: float | None = None) -> list[Throughput]:
    """Return the one number of an output that says how fast the program was; several if it prints several that differ.

    Each is read back by its pattern from the same output; one without a pattern cannot be told from others. ``wall_s``
    is how long the program took.
    """
    lines = quantities().plain(output).split("\n")
    if len(lines) > sum(_ENDS):
        lines = [*lines[: _ENDS[0]], *lines[-_ENDS[1] :]]
    text = Text("\n".join(lines))
    epoch = max((number for number, line in enumerate(lines) if _EPOCH.fullmatch(line)), default=-1)
    kinds = [part for found in _kinds(lines) for part in _parts(found, epoch)]
    unclear = {one.unit or one.key for found in kinds for one in found if one.field.unclear}
    usable = [
        found for found in kinds if not unclear & {found[-1].unit, found[-1].key} and _is_plausible(found, wall_s)
    ]
    return [one for found in _best(usable) for one in _as_throughput(text, found)]


def _kinds(lines: Sequence[str]) -> Iterator[list[Reading]]:
    """Yield the numbers of each kind; those of two bars of another length are two kinds, those of many are one."""
    kinds: dict[tuple[str, ...], dict[str, list[Reading]]] = {}
    for reading in readings(lines):
        kinds.setdefault(reading.key, {}).setdefault(reading.total, []).append(reading)
    for by_total in kinds.values():
        if len(by_total) > _MOST_BARS:
            yield sorted(itertools.chain(*by_total.values()), key=lambda one: (one.number, one.field.start))
        else:
            yield from by_total.values()


def _parts(found: list[Reading], epoch: int) -> list[list[Reading]]:
    """Return the kinds that numbers of lines alike are of: each value of a sweep is one, and so are bars of training.

    ``epoch`` is the line after which the last epoch begins.
    """
    swept = _swept(found)
    if swept:
        return swept
    bars = [one for one in found if one.total and f" {one.total}/{one.total} " in f" {one.line} "]
    labels = [_labels(one) for one in bars]
    extra = min((one for one in frozenset().union(*labels) - labels[-1] if is_eval(one)), default="") if bars else ""
    if extra:
        training = [replace(one, extra=extra) for one, those in zip(bars, labels, strict=True) if extra in those]
        return [
            training,
            [replace(one, phase="eval") for one, those in zip(bars, labels, strict=True) if extra not in those],
        ]
    last = [one for one in bars if one.number > epoch >= 0]
    values = [one.field.value for one in last]
    return [last[:1], last[-1:]] if last and max(values) > _ANOTHER * min(values) else [found]


def _swept(found: Sequence[Reading]) -> list[list[Reading]]:
    """Return the numbers by the first one of their line if it is set (batch size 1, 2) or at least doubles (1, 8, 64).

    It is neither for a step: 1, 10, 20.
    """
    first = quantities().fields(found[-1].line)[0]
    if first.start >= found[-1].field.start or not first.value.is_integer() or (first.unit and first.unit.text == "%"):
        return []
    by_count: dict[float, list[Reading]] = {}
    for one in found:
        by_count.setdefault(quantities().fields(one.line)[0].value, []).append(one)
    counts, values = list(by_count), [one.field.value for one in found]
    strides = [after - before for before, after in itertools.pairwise(counts)]
    doubles = all(0 < 2 * before <= after for one in (counts, strides) for before, after in itertools.pairwise(one))
    swept = len(counts) > 2 and doubles and max(values) > _ANOTHER * min(values)
    named = _SET.search(quantities().words(first.label)) and 1 < len(counts) <= _MOST_SET
    return list(by_count.values()) if swept or named else []


def _labels(one: Reading) -> frozenset[str]:
    return frozenset(field.label for field in quantities().fields(one.line) if field.start > one.field.start)


def cut(output: str) -> bool:
    """Say whether the middle of an output was left out, as it was long."""
    return _CUT.search(output) is not None


def _is_plausible(found: Sequence[Reading], wall_s: float | None) -> bool:
    """Say whether numbers of one kind can be speeds of a program that took so long: no clock, no longer time."""
    last = found[-1]
    if not last.field.value > 0:
        return False
    if last.order < A_TIME:
        bar = _BAR.search(last.line)
        seconds = _seconds(bar["clock"]) if bar and last.order == STEPS else 0
        return not bar or seconds < 5 or 0.5 < last.field.value * seconds / max(1, int(bar["done"])) < 2
    scale = last.field.unit.scale if last.field.unit else (getattr(quantities().unit_of(last.unit), "scale", 1.0))
    if last.field.value * scale > (1e5 if wall_s is None else _CLOCK * wall_s + _CLOCK_S):
        return False
    values = [one.field.value for one in found]
    rises = len(values) > 2 and all(after > before for before, after in itertools.pairwise(values))
    return not (last.order == A_TIME_OF and rises and values[-1] > 2 * values[0])


def _seconds(clock: str) -> int:
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part or 0)
    return total


def _best(kinds: Sequence[Sequence[Reading]]) -> list[Sequence[Reading]]:
    """Return the kind of number that says most of the program's work; several if none of them does."""
    left = [found for found in kinds if found[-1].phase != "aside"]
    others = [found for found in left if found[-1].phase != "eval"]
    checked = [found[-1].field.value for found in left if found[-1].phase == "eval" and found[-1].order == STEPS]
    if any(not _is_bar_of(found[-1], checked) and found[-1].order != BYTES for found in others):
        left = others
    first = min((found[-1].order for found in left), default=0)
    steps = [found for found in left if found[-1].order == STEPS]
    left = [found for found in left if found[-1].order == first]
    left = _unless_all(left, lambda one: not one.second)
    left = _unless_all(left, lambda one: not one.by_device)
    of_all = [found[-1] for found in left if found[-1].summary]
    left = [found for found in left if found[-1].summary or not any(map(found[-1].is_of, of_all))]
    if first < STEPS and not _agree(left, steps):
        left += steps
    values = [found[-1].field.value for found in left]
    return left[-1:] if values and max(values) <= (1 + _SAME) * min(values) else left


def _is_bar_of(one: Reading, steps: Sequence[float]) -> bool:
    """Say whether a bar without words has one of these speeds, hardly another: it is theirs."""
    return bool(one.total) and not one.phase and any(0.9 < one.field.value / value < 1.1 for value in steps)


def _unless_all(kinds: list[Sequence[Reading]], wanted: object) -> list[Sequence[Reading]]:
    """Return the kinds that are wanted, all if none is."""
    assert callable(wanted)
    return [found for found in kinds if wanted(found[-1])] or kinds


def _agree(samples: Sequence[Sequence[Reading]], steps: Sequence[Sequence[Reading]]) -> bool:
    """Say whether a step can have that many samples: one at least."""
    most = max((found[-1].field.value for found in steps), default=0.0)
    return all(found[-1].field.value >= (1 - _SAME) * most for found in samples)


def _as_throughput(text: Text, found: Sequence[Reading]) -> Iterator[Throughput]:
    """Return numbers of one kind with the pattern that reads them back, for each process that prints them."""
    ranks: dict[str, list[Reading]] = {}
    for one in found:
        ranks.setdefault(one.rank, []).append(one)
    values = [of[-1].field.value for of in ranks.values()]
    alike = max(values) <= (1 + _SAME) * min(values)
    if len(ranks) == 1 or alike:
        note = f"the same of {len(ranks)} processes" if len(ranks) > 1 else ""
        yield from _read_back(text, found, "", note)
        return
    for rank, of in ranks.items():
        yield from _read_back(text, of, rank, f"of process {rank}" if rank else "")


def _read_back(text: Text, found: Sequence[Reading], rank: str, note: str) -> Iterator[Throughput]:
    last = found[-1]
    unit = last.field.unit.text if last.field.unit else ""
    label = last.field.label.replace("\0", "N")
    if not label or (unit and not quantities().of_label(quantities().words(label))):
        label = f"{label} {unit}".strip()
    span = (last.field.start, last.field.unit_end)
    regex = pattern_of(text, found, rank)
    yield Throughput(regex, label, last.field.value, last.unit, last.better, last.line, span, note)


def counts_steps(output: str) -> str:
    """Return the pattern of the one kind of line that counts up evenly, as steps do; '' if there is none or several.

    Of an output whose middle was left out both ends count up evenly.
    """
    counted: dict[str, list[list[int]]] = {}
    parts = _CUT.split(quantities().without_colours(output))
    for number, part in enumerate(parts):
        whole = part if len(parts) == 1 else part.partition("\n")[2] if number else part.rpartition("\n")[0]
        for words, numbers in _counted(whole).items():
            counted.setdefault(words, []).append(numbers)
    found = [
        words for words, runs in counted.items() if max(map(len, runs)) >= _FEWEST_STEPS and _is_even(*runs)
    ]  # fmt: skip
    return f"^{re.escape(found[0])}[0-9]+".replace("\\ ", " ") if len(found) == 1 else ""


def _counted(part: str) -> dict[str, list[int]]:
    counted: dict[str, list[int]] = {}
    for line in _COUNTED.finditer(part):
        counted.setdefault(line["words"], []).append(int(line["number"]))
    return counted


def _is_even(*runs: Sequence[int]) -> bool:
    strides = {after - before for numbers in runs for before, after in itertools.pairwise(numbers)}
    return len(strides) == 1 and min(strides) > 0


def is_of_pytest_benchmark(output: str) -> bool:
    """Say whether an output holds pytest-benchmark's table: it repeats what it measures until a time is spent."""
    return _PYTEST_BENCHMARK.search(quantities().without_colours(output)) is not None
