"""Build a regular expression that matches one kind of number in an output, and no other number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from envmatrix.matrix.program_output.speed_numbers import Reading
from envmatrix.system import shared_bench_modules as bench

#: Only the start of a number: bench/number_parser.py reads the rest, its separators, factor and unit.
_NUMBER = r"\b([0-9.]+)"
_BETWEEN = r"[^\w\n]*"
_ANYTHING = r"[^\n]*?"
#: The characters of a progress bar.
_BAR_CHARACTERS = re.compile(r"[=#>.*-]{4,}|[^\x00-\x7f\w\s]+")
_TQDM = re.compile(r"\d/\d[\d.]*[kKMGT]? \[[\d:]+<")
_NOT_OF_EVALUATION = r"^(?![^\n]*(?i:eval|valid|test))[^\n]*?"


class OutputText:
    """An output, and the position at which each number matched by a pattern starts."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begins = [0, *itertools.accumulate(len(line) + 1 for line in text.split("\n"))]

    def place(self, reading: Reading) -> int:
        """Return the start of a reading's number."""
        return self._begins[reading.number] + reading.field.start

    def number_positions(self, pattern: str, enough: int) -> set[int]:
        """Return the starts of the numbers that a pattern matches, at most ``enough`` + 1; -1: not one number."""
        positions: set[int] = set()
        for match in re.finditer(pattern, self._text, re.MULTILINE):
            line_start = self._text.rfind("\n", 0, match.start(1)) + 1
            line_end = self._text.find("\n", match.start(1))
            line, start = self._text[line_start : line_end if line_end >= 0 else None], match.start(1) - line_start
            field_starts = [
                field.start for field in bench.number_parser.fields(line) if field.start <= start < field.end
            ]
            positions.add(line_start + field_starts[0] if len(field_starts) == 1 else -1)
            if len(positions) > enough:
                break
        return positions


def shortest_pattern(text: OutputText, readings: Sequence[Reading], rank: str) -> str:
    """Return the shortest pattern that finds exactly these numbers in a text; '' if there is none.

    It uses words of the label, the start of the line and the unit, but no digits, because they differ between runs.
    """
    positions = {text.place(reading) for reading in readings}
    for pattern in _candidate_patterns(readings[-1], rank):
        if text.number_positions(pattern, len(positions)) == positions:
            return pattern
    return ""


def _candidate_patterns(reading: Reading, rank: str) -> Iterator[str]:
    field = reading.field
    unit = _unit_pattern(field, reading.line)
    behind = f" ?[kKMGT]? ?{unit}" if unit else ""
    if not rank:
        yield from _label_patterns(reading, behind)
    if reading.extra:
        yield rf"{_NUMBER}{behind}{_ANYTHING}\b{re.escape(reading.extra)}\b"
    prefix = _line_start_pattern(reading, rank)
    if prefix.endswith(_ANYTHING) and field.label:
        yield f"{prefix}{_escape_words(field.label)}{_BETWEEN}{_NUMBER}"
    elif field.label:
        yield f"{prefix}{_NUMBER}"
    if unit:
        yield f"{prefix}{_NUMBER}{behind}"
    if unit and reading.total:
        yield rf"/ *{reading.total}\b{_ANYTHING}{_NUMBER}{behind}"
    if not rank:
        yield from (f"{_NOT_OF_EVALUATION}{pattern}" for pattern in _label_patterns(reading, behind))


def _label_patterns(reading: Reading, behind: str) -> Iterator[str]:
    """Yield patterns of the label, the unit, both, and the number before; the most descriptive of them first."""
    field, wrapper = reading.field, re.escape(reading.field.wrapper)
    labels = [_escape_words(label) for label in _label_endings(field.label)] if field.label else []
    of_unit = [f"{_NUMBER}{behind}"] if behind else []
    if not _is_descriptive(field.label):
        yield from of_unit
    yield from (f"{label}{_BETWEEN}{wrapper}{_NUMBER}" for label in labels)
    if labels:
        exact = rf"\s*{re.escape(field.connector)}\s*" if field.connector else r"\s+"
        yield f"{labels[0]}{exact}{wrapper}{_NUMBER}"
    yield from of_unit
    if behind:
        yield from (f"{label}{_BETWEEN}([0-9][0-9.,_ ]*){behind}" for label in labels)
        yield from _previous_number_patterns(reading, behind)


def _label_endings(label: str) -> list[str]:
    """Return the endings of a label, shortest first, starting with the first that describes the number."""
    words = label.split(" ")
    ends = [" ".join(words[start:]) for start in range(len(words) - 1, -1, -1) if words[start][:1] not in ("(", "[")]
    descriptive = [ending for ending in ends if re.search("[A-Za-z]{2}", ending) and _is_descriptive(ending)]
    return [ending for ending in ends if not descriptive or len(ending) >= len(descriptive[0])]


def _is_descriptive(ending: str) -> bool:
    name = bench.number_parser.words(ending)
    return bench.number_parser.label_names_speed(name) or re.search(r"\b(?:time|timing|dt|latency)\b", name) is not None


def _escape_words(words: str) -> str:
    """Return words as a pattern. A number in them (NUL) may have any value."""
    escaped = re.escape(words).replace("\\ ", " ").replace("\0", "[0-9.,]+")
    return rf"\b{escaped}" if re.match(r"\w", words) else escaped


def _unit_pattern(field: bench.NumberField, line: str) -> str:
    """Return a unit as a pattern. It also accepts variants: it/s for s/it, and s for ms."""
    if not field.unit:
        return ""
    text, per = field.unit.text, re.escape(field.unit.per)
    attached = field.unit_end - len(text) == field.end  # no space between number and unit, as in tqdm
    if _TQDM.search(line):
        per, attached = f" ?{per}", True  # a unit of the user's own may begin with a blank
    if per and attached and field.unit.kind == "rate" and text.lower() == f"{field.unit.per}/s".lower():
        return f"(?:{re.escape(text)}|s/{per})"
    if field.unit.kind == "time":
        name = text.partition("/")[0]
        name = r"\w?s" if name in ("ns", "us", "\u00b5s", "\u03bcs", "ms", "s") else re.escape(name)
        if not per:
            return rf"{name}\b"
        if attached and text == f"s/{field.unit.per}":
            return f"(?:s/{per}|{per}/s)"
        error = r"(?: ?(?:\u00b1|\+/?-) ?[0-9.]+ ?\w*)?" if re.search(r"\u00b1|\+/?-", line) else ""
        return rf"{name}{error}(?: ?/ ?| per ){per}\b"
    prefixed = re.fullmatch(r"[kKMGTPE]?(FLOP.*|B/s|B)", text)
    if prefixed:
        return rf"[kKMGTPE]?{re.escape(prefixed[1])}"
    return _escape_words(text).removeprefix(r"\b") + (r"\b" if text[-1:].isalpha() else "")


def _previous_number_patterns(reading: Reading, behind: str) -> Iterator[str]:
    """Yield patterns that start at the previous number's label: ``Time: 0.52s, 489.2/s (0.54s, 474.3/s)``."""
    previous = [
        field for field in bench.number_parser.fields(reading.line) if field.start < reading.field.start and field.label
    ]
    if previous and not reading.second:
        yield f"{_escape_words(_label_endings(previous[-1].label)[0])}{_BETWEEN}[0-9.,]+[^\\n(]*?{_NUMBER}{behind}"


def _line_start_pattern(reading: Reading, rank: str) -> str:
    """Return the start of a line, up to its first number, as a pattern; with ``rank``, that rank's own marker."""
    line, _ = bench.number_parser.mask_dates_and_detect_counts(reading.line)
    line = _BAR_CHARACTERS.sub(lambda bar: "\0" * len(bar[0]), line)
    if rank:
        rank_match = re.search(rf"[A-Za-z]+[\s\"':=_#\[-]{{0,3}}{rank}(?!\d)|^\[\d+,{rank}\]", line)
        return f"{re.escape(rank_match[0])}(?![0-9]){_ANYTHING}" if rank_match else f"^(?!){_ANYTHING}"
    first_field = bench.number_parser.fields(reading.line)[0]
    line_start, is_first = line[: first_field.start], first_field.start == reading.field.start
    parts = [re.sub(r"(?:\\ |\\\t)+", r"\\s*", re.escape(part)) for part in re.split(r"\0+", line_start)]
    masked = [reading.line[hidden.start()] for hidden in re.finditer(r"\0+", line_start)]
    between = [r"[0-9][^A-Za-z\n]*?T?[^A-Za-z\n]*?" if character.isdigit() else r"\S+" for character in masked]
    escaped = "".join(f"{part}{hid}" for part, hid in zip(parts, [*between, ""], strict=True))
    return f"^{escaped or ' *'}" if is_first else f"^{escaped or ' *'}[0-9]{_ANYTHING}"
