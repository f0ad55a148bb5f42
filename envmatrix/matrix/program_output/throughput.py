"""Find the number in a program's output that measures its speed, and a pattern that reads it from later outputs."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from envmatrix.matrix.program_output.json_entry_groups import group_json_entries_by_name
from envmatrix.matrix.program_output.regex_generation import OutputText, shortest_pattern
from envmatrix.matrix.program_output.speed_numbers import (
    BYTES,
    SIDE_PHASE,
    STEP_TIME,
    STEPS,
    UNSPECIFIED_TIME,
    Reading,
    is_evaluation_label,
    speed_readings,
)
from envmatrix.system import shared_bench_modules as bench

#: Numbers within this relative difference are the same number printed twice.
_SAME_TOLERANCE = 0.01
#: Lines read from the start and the end of a longer output.
_HEAD_AND_TAIL_LINES = (500, 1500)
#: With more bar lengths than this, the lengths are counts, such as numbers of requests.
_MAX_BARS = 3
#: A program's own clock may exceed its wall time by this much: seconds, and factor.
_CLOCK_S, _CLOCK = 0.1, 1.1
_BAR = re.compile(r"(?P<done>\d+)/(?P<all>\d+) \[(?P<clock>[\d:]+)<")
#: Labels of settings rather than counters; a sweep has at most this many values.
_SETTING_LABEL = re.compile(r"\b(?:size|bs|len|length|dim|threads?|workers?|streams?|concurrency)$")
_MAX_SETTINGS = 20
_TRAINING_LOSS = re.compile(r"(?<![a-z])(?:train(?:ing)?|epoch)(?![a-z]).*\bloss|(?<![a-z])train_loss", re.IGNORECASE)
#: Keras prints this line before the bar of an epoch.
_EPOCH = re.compile(r"Epoch \d+/\d+")
#: Speeds with a larger ratio are different quantities, if other signs agree.
_DIFFERENT_RATIO = 1.5
_PYTEST_BENCHMARK = re.compile(r"^-+ benchmark[^\n]*: \d+ tests? -+$", re.MULTILINE)

_COUNTER_LINE = re.compile(r"^(?P<words>[A-Za-z\[(#][A-Za-z \[(#:=_-]*)(?P<number>[0-9]+)\b(?!\.[0-9])", re.MULTILINE)
#: Placeholder for the part of a long output that was left out (bench/user_program.py).
_CUT = re.compile(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n")
#: Lines that count seconds, or work before the steps.
_NO_STEPS = re.compile(rf"\b(?:t|time|elapsed|uptime|secs?|seconds?)\W*\Z|{SIDE_PHASE.pattern}", re.IGNORECASE)
#: Fewer counted lines are not steps: they may be epochs.
_MIN_STEPS = 20


@dataclass(frozen=True)
class Throughput:
    """A pattern that finds one number of an output, with the number's label, last value and unit.

    ``line`` is the last line that contains it, ``span`` its position there; ``note`` describes what else was printed.
    ``beside_training``: it is that of an evaluation, and the program prints a loss of its training without a speed.
    """

    regex: str
    label: str
    value: float
    unit: str
    better: str
    line: str
    span: tuple[int, int]
    note: str = ""
    beside_training: bool = False


def throughput_candidates(output: str, wall_s: float | None = None) -> list[Throughput]:
    """Return the number of an output that measures the program's speed, or several numbers if they differ.

    Each pattern was verified on the same output; an empty pattern means that none identifies the number. ``wall_s`` is
    the program's wall time.
    """
    lines = bench.number_parser.redraws_as_lines(output).split("\n")
    if len(lines) > sum(_HEAD_AND_TAIL_LINES):
        lines = bench.number_parser.redraws_as_lines(
            _without_redraws(bench.number_parser.without_colours(output))
        ).split("\n")
    if len(lines) > sum(_HEAD_AND_TAIL_LINES):
        lines = [*lines[: _HEAD_AND_TAIL_LINES[0]], *lines[-_HEAD_AND_TAIL_LINES[1] :]]
    text = OutputText("\n".join(lines))
    epoch = max((number for number, line in enumerate(lines) if _EPOCH.fullmatch(line)), default=-1)
    groups = [group for kind in _group_by_kind(lines) for group in group_json_entries_by_name(lines, kind) or [kind]]
    kinds = [kind for group in groups for kind in _split_kind(group, epoch)]
    unclear = {reading.unit or reading.key for group in kinds for reading in group if reading.field.unclear}
    usable = [
        group for group in kinds if not unclear & {group[-1].unit, group[-1].key} and _is_plausible(group, wall_s)
    ]
    best = _best_kinds(usable)
    beside_training = all(group[-1].phase == "eval" for group in best) and _trains(lines, usable)
    numbers = [number for group in best for number in _throughputs(text, group)]
    return [replace(number, beside_training=beside_training) for number in numbers]


def _without_redraws(output: str) -> str:
    """Return an output without the states of a bar that the next one draws over with other numbers only."""
    kept = []
    for line in output.split("\n"):
        states = line.split("\r")
        words = [re.sub(r"[^A-Za-z]+", "", state) for state in states]
        kept.append(
            "\r".join(
                state for state, own, later in zip(states, words, [*words[1:], None], strict=True) if own != later
            )
        )
    return "\n".join(kept)


def _trains(lines: Sequence[str], kinds: Iterable[Sequence[Reading]]) -> bool:
    """Return whether a line without a speed has the loss of a training."""
    with_speed = {reading.number for group in kinds for reading in group}
    return any(_TRAINING_LOSS.search(line) for number, line in enumerate(lines) if number not in with_speed)


def _group_by_kind(lines: Sequence[str]) -> Iterator[list[Reading]]:
    """Yield the numbers of each kind. Bars of different length are separate kinds, unless there are many."""
    readings_by_kind: dict[tuple[str, ...], dict[str, list[Reading]]] = {}
    for reading in speed_readings(lines):
        readings_by_kind.setdefault(reading.key, {}).setdefault(reading.total, []).append(reading)
    for by_total in readings_by_kind.values():
        if len(by_total) > _MAX_BARS:
            yield sorted(itertools.chain(*by_total.values()), key=lambda reading: (reading.number, reading.field.start))
        else:
            yield from by_total.values()


def _split_kind(group: list[Reading], epoch: int) -> list[list[Reading]]:
    """Split similar lines into kinds: one for each value of a sweep, or training bars and evaluation bars.

    ``epoch`` is the line number at which the last epoch starts.
    """
    if swept := _split_sweep(group):
        return swept
    bars = [bar for bar in group if bar.total and f" {bar.total}/{bar.total} " in f" {bar.line} "]
    labelled_bars = [(bar, _later_labels(bar)) for bar in bars]
    all_labels: frozenset[str] = frozenset().union(*(labels for _, labels in labelled_bars))
    earlier_labels = all_labels - labelled_bars[-1][1] if bars else all_labels
    if evaluation_label := min(filter(is_evaluation_label, earlier_labels), default=""):
        with_label = [bar for bar, labels in labelled_bars if evaluation_label in labels]
        without_label = [bar for bar, labels in labelled_bars if evaluation_label not in labels]
        return [
            [replace(bar, extra=evaluation_label) for bar in with_label],
            [replace(bar, phase="eval") for bar in without_label],
        ]
    on_each_line = Counter(reading.number for reading in group)
    in_last_line = group[-on_each_line[group[-1].number] :]
    if len({*on_each_line.values()}) == 1 < len(in_last_line) and not _agree(in_last_line):
        return [group[place :: len(in_last_line)] for place in range(len(in_last_line))]
    last_epoch_bars = [bar for bar in bars if bar.number > epoch >= 0]
    values = [bar.field.value for bar in last_epoch_bars]
    differ = values and max(values) > _DIFFERENT_RATIO * min(values)
    return [last_epoch_bars[:1], last_epoch_bars[-1:]] if differ else [group]


def _split_sweep(group: Sequence[Reading]) -> list[list[Reading]]:
    """Group numbers by the first number on their line if that is a setting (batch size) or at least doubles (1, 8, 64).

    A step counter does neither: 1, 10, 20.
    """
    first_field, last_field = bench.number_parser.fields(group[-1].line)[0], group[-1].field
    is_percentage = first_field.unit is not None and first_field.unit.text == "%"
    if first_field.start >= last_field.start or not first_field.value.is_integer() or is_percentage:
        return []
    by_count: dict[float, list[Reading]] = {}
    for reading in group:
        by_count.setdefault(bench.number_parser.fields(reading.line)[0].value, []).append(reading)
    counts, values = list(by_count), [reading.field.value for reading in group]
    strides = [larger - smaller for smaller, larger in itertools.pairwise(counts)]
    pairs = (*itertools.pairwise(counts), *itertools.pairwise(strides))
    doubles = all(0 < 2 * smaller <= larger for smaller, larger in pairs)
    swept = len(counts) > 2 and doubles and max(values) > _DIFFERENT_RATIO * min(values)
    is_setting = (
        _SETTING_LABEL.search(bench.number_parser.words(first_field.label)) and 1 < len(counts) <= _MAX_SETTINGS
    )
    return list(by_count.values()) if swept or is_setting else []


def _later_labels(reading: Reading) -> frozenset[str]:
    return frozenset(
        field.label for field in bench.number_parser.fields(reading.line) if field.start > reading.field.start
    )


def is_truncated(output: str) -> bool:
    """Return whether the middle of a long output was left out."""
    return _CUT.search(output) is not None


def _is_plausible(group: Sequence[Reading], wall_s: float | None) -> bool:
    """Return whether numbers of one kind can be speeds of a program with this wall time: not a clock, not longer."""
    last = group[-1]
    value, unit = last.field.value, last.field.unit
    if not value > 0:
        return False
    if last.order < STEP_TIME:
        bar = _BAR.search(last.line)
        seconds = _clock_seconds(bar["clock"]) if bar and last.order == STEPS else 0
        return not bar or seconds < 5 or 0.5 < value * seconds / max(1, int(bar["done"])) < 2
    scale = unit.scale if unit else getattr(bench.number_parser.unit_of(last.unit), "scale", 1.0)
    if value * scale > (1e5 if wall_s is None else _CLOCK * wall_s + _CLOCK_S):
        return False
    values = [reading.field.value for reading in group]
    rises = len(values) > 2 and all(later > earlier for earlier, later in itertools.pairwise(values))
    return not (last.order == UNSPECIFIED_TIME and rises and value > 2 * values[0])


def _clock_seconds(clock: str) -> int:
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part or 0)
    return total


def _best_kinds(kinds: Sequence[Sequence[Reading]]) -> list[Sequence[Reading]]:
    """Return the kind of number that best measures the program's work; several if they disagree."""
    candidates = [group for group in kinds if group[-1].phase != "aside"]
    training = [group for group in candidates if group[-1].phase != "eval"]
    evaluation_steps = [
        group[-1].field.value for group in candidates if group[-1].phase == "eval" and group[-1].order == STEPS
    ]
    if any(not _is_bar_of_steps(group[-1], evaluation_steps) and group[-1].order != BYTES for group in training):
        candidates = training
    lowest_order = min((group[-1].order for group in candidates), default=0)
    steps = [group for group in candidates if group[-1].order == STEPS]
    candidates = [group for group in candidates if group[-1].order == lowest_order]
    candidates = [group for group in candidates if not group[-1].second] or candidates
    candidates = [group for group in candidates if not group[-1].by_device] or candidates
    summaries = [group[-1] for group in candidates if group[-1].summary]
    candidates = [
        group for group in candidates if group[-1].summary or not any(map(group[-1].counts_the_same_as, summaries))
    ]
    if lowest_order < STEPS and not _rates_agree(candidates, steps):
        candidates += steps
    return candidates[-1:] if _agree([group[-1] for group in candidates]) else candidates


def _agree(readings: Sequence[Reading]) -> bool:
    """Return whether numbers are the same number printed twice."""
    values = [reading.field.value for reading in readings]
    return max(values, default=0.0) <= (1 + _SAME_TOLERANCE) * min(values, default=0.0)


def _is_bar_of_steps(bar: Reading, steps: Sequence[float]) -> bool:
    """Return whether a bar without a label has nearly one of these speeds, and so shows the same loop."""
    return bool(bar.total) and not bar.phase and any(0.9 < bar.field.value / value < 1.1 for value in steps)


def _rates_agree(samples: Sequence[Sequence[Reading]], steps: Sequence[Sequence[Reading]]) -> bool:
    """Return whether the rates are consistent: each step has at least one sample."""
    largest_step_rate = max((group[-1].field.value for group in steps), default=0.0)
    return all(group[-1].field.value >= (1 - _SAME_TOLERANCE) * largest_step_rate for group in samples)


def _throughputs(text: OutputText, group: Sequence[Reading]) -> Iterator[Throughput]:
    """Yield numbers of one kind with the pattern that reads them, one for each process if they differ."""
    ranks: dict[str, list[Reading]] = {}
    for reading in group:
        ranks.setdefault(reading.rank, []).append(reading)
    if len(ranks) == 1 or _agree([rank_readings[-1] for rank_readings in ranks.values()]):
        note = f"the same line from {len(ranks)} processes" if len(ranks) > 1 else ""
        yield from _verified_throughput(text, group, "", note)
        return
    for rank, rank_readings in ranks.items():
        yield from _verified_throughput(text, rank_readings, rank, f"of process {rank}" if rank else "")


def _verified_throughput(text: OutputText, group: Sequence[Reading], rank: str, note: str) -> Iterator[Throughput]:
    last, field = group[-1], group[-1].field
    unit = field.unit.text if field.unit else ""
    label = field.label.replace("\0", "N")
    if not label or (unit and not bench.number_parser.label_names_speed(bench.number_parser.words(label))):
        label = f"{label} {unit}".strip()
    regex, span = shortest_pattern(text, group, rank), (field.start, field.unit_end)
    yield Throughput(regex, label, field.value, last.unit, last.better, last.line, span, note)


def step_line_pattern(output: str) -> str:
    """Return the pattern of the one kind of line that counts evenly, as steps do; '' if there is none or several.

    If the middle of the output was left out, both ends must count evenly.
    """
    runs_by_words: dict[str, list[list[int]]] = {}
    parts = _CUT.split(bench.number_parser.without_colours(output))
    for number, part in enumerate(parts):
        complete_lines = part if len(parts) == 1 else part.partition("\n")[2] if number else part.rpartition("\n")[0]
        for words, numbers in _counter_values(complete_lines).items():
            runs_by_words.setdefault(words, []).append(numbers)
    patterns = [words for words, runs in runs_by_words.items() if max(map(len, runs)) >= _MIN_STEPS and _is_even(*runs)]
    return f"^{re.escape(patterns[0])}[0-9]+".replace("\\ ", " ") if len(patterns) == 1 else ""


def _counter_values(chunk: str) -> dict[str, list[int]]:
    counts_by_words: dict[str, list[int]] = {}
    for line in _COUNTER_LINE.finditer(chunk):
        if not _NO_STEPS.search(line["words"].replace("_", " ")):
            counts_by_words.setdefault(line["words"], []).append(int(line["number"]))
    return counts_by_words


def _is_even(*runs: Sequence[int]) -> bool:
    strides = {later - earlier for numbers in runs for earlier, later in itertools.pairwise(numbers)}
    return len(strides) == 1 and min(strides) > 0


def has_pytest_benchmark_table(output: str) -> bool:
    """Return whether an output contains pytest-benchmark's table: it repeats its work until a time limit."""
    return _PYTEST_BENCHMARK.search(bench.number_parser.without_colours(output)) is not None
