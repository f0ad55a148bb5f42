"""The pattern that finds the numbers of one kind in an output, and nothing else there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envmatrix.matrix.printed import Reading
from envmatrix.system.bench_options import NumberField, quantities

#: Only where a number begins: it is read whole, with its separators, its factor and its unit (bench/quantities.py).
_NUMBER = r"\b([0-9.]+)"
_BETWEEN = r"[^\w\n]*"
_ANY = r"[^\n]*?"
#: The glyphs of a bar.
_DRAWN = re.compile(r"[=#>.*-]{4,}|[^\x00-\x7f\w\s]+")
_NOT_OF_EVALUATION = r"^(?![^\n]*(?i:eval|valid|test))[^\n]*?"


class Text:
    """An output, and where in it each number that a pattern finds begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begins = [0]
        for line in text.split("\n"):
            self._begins.append(self._begins[-1] + len(line) + 1)

    def place(self, reading: Reading) -> int:
        """Return where the number of a reading begins."""
        return self._begins[reading.number] + reading.field.start

    def found(self, pattern: str, enough: int) -> set[int]:
        """Return where the numbers begin that a pattern finds, at most one more than are ``enough``; -1: no number."""
        places: set[int] = set()
        for match in re.finditer(pattern, self._text, re.MULTILINE):
            begin = self._text.rfind("\n", 0, match.start(1)) + 1
            end = self._text.find("\n", match.start(1))
            line, start = self._text[begin : end if end >= 0 else None], match.start(1) - begin
            whole = [one.start for one in quantities().fields(line) if one.start <= start < one.end]
            places.add(begin + whole[0] if len(whole) == 1 else -1)
            if len(places) > enough:
                break
        return places


def pattern_of(text: Text, found: Sequence[Reading], rank: str) -> str:
    """Return the shortest pattern that finds exactly these numbers in a text; '' if there is none.

    It has words of the label or of the beginning of the line, and the unit, but no digit: those are others in each run.
    """
    places = {text.place(one) for one in found}
    for pattern in _patterns(found[-1], rank):
        if text.found(pattern, len(places)) == places:
            return pattern
    return ""


def _patterns(last: Reading, rank: str) -> Iterator[str]:
    field = last.field
    unit = _unit(field, last.line)
    behind = f" ?[kKMGT]? ?{unit}" if unit else ""
    if not rank:
        yield from _without_prefix(last, behind)
    if last.extra:
        yield rf"{_NUMBER}{behind}{_ANY}\b{re.escape(last.extra)}\b"
    prefix = _prefix(last, rank)
    if prefix.endswith(_ANY) and field.label:
        yield f"{prefix}{_escaped(field.label)}{_BETWEEN}{_NUMBER}"
    elif field.label:
        yield f"{prefix}{_NUMBER}"
    if unit:
        yield f"{prefix}{_NUMBER}{behind}"
    if unit and last.total:
        yield rf"/ *{last.total}\b{_ANY}{_NUMBER}{behind}"
    if not rank:
        yield from (f"{_NOT_OF_EVALUATION}{pattern}" for pattern in _without_prefix(last, behind))


def _without_prefix(last: Reading, behind: str) -> Iterator[str]:
    """Yield patterns of the label, the unit, both, and the number before; first of what says that it is a speed."""
    field, wrapper = last.field, re.escape(last.field.wrapper)
    labels = [_escaped(label) for label in _endings(field.label)] if field.label else []
    of_unit = [f"{_NUMBER}{behind}"] if behind else []
    if not _says_something(field.label):
        yield from of_unit
    yield from (f"{label}{_BETWEEN}{wrapper}{_NUMBER}" for label in labels)
    if labels:
        exact = rf"\s*{re.escape(field.connector)}\s*" if field.connector else r"\s+"
        yield f"{labels[0]}{exact}{wrapper}{_NUMBER}"
    yield from of_unit
    if behind:
        yield from (f"{label}{_BETWEEN}([0-9][0-9.,_ ]*){behind}" for label in labels)
        yield from _after_another(last, behind)


def _endings(label: str) -> list[str]:
    """Return the words of a label from the one on that says what the number is, then with more before them."""
    words = label.split(" ")
    ends = [" ".join(words[start:]) for start in range(len(words) - 1, -1, -1) if words[start][:1] not in ("(", "[")]
    said = [end for end in ends if re.search("[A-Za-z]{2}", end) and _says_something(end)]
    return [end for end in ends if not said or len(end) >= len(said[0])]


def _says_something(end: str) -> bool:
    name = quantities().words(end)
    return quantities().of_label(name) or re.search(r"\b(?:time|timing|dt|latency)\b", name) is not None


def _escaped(words: str) -> str:
    """Return words as a pattern; a number within them (NUL) may be another one."""
    escaped = (
        re.escape(words)
        .replace("\\ ", " ")
        .replace("\\/", "/")
        .replace("\0", "[0-9.,]+")
        .replace("\\[0-9.,]+", "[0-9.,]+")
    )
    return rf"\b{escaped}" if re.match(r"\w", words) else escaped


def _unit(field: NumberField, line: str) -> str:
    """Return a unit as a pattern: s/it may become it/s, and ms may become s."""
    if not field.unit:
        return ""
    text, per = field.unit.text, re.escape(field.unit.per)
    attached = field.unit_end - len(text) == field.end  # as tqdm has it
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
    return _escaped(text).removeprefix(r"\b") + (r"\b" if text[-1:].isalpha() else "")


def _after_another(last: Reading, behind: str) -> Iterator[str]:
    """Yield patterns that begin at the label of the number before: ``Time: 0.52s, 489.2/s (0.54s, 474.3/s)``."""
    before = [one for one in quantities().fields(last.line) if one.start < last.field.start and one.label]
    if before and not last.second:
        yield f"{_escaped(_endings(before[-1].label)[0])}{_BETWEEN}[0-9.,]+[^\\n(]*?{_NUMBER}{behind}"


def _prefix(last: Reading, rank: str) -> str:
    """Return the beginning of a line as a pattern, up to its first number; that of a process has its number."""
    line, _ = quantities().masked(last.line)
    line = _DRAWN.sub(lambda bar: "\0" * len(bar[0]), line)
    if rank:
        said = re.search(rf"[A-Za-z]+[\s\"':=_#\[-]{{0,3}}{rank}(?!\d)|^\[\d+,{rank}\]", line)
        return f"{re.escape(said[0])}(?![0-9]){_ANY}" if said else f"^(?!){_ANY}"
    first = quantities().fields(last.line)[0]
    begin, is_first = line[: first.start], first.start == last.field.start
    parts = [re.sub(r"(?:\\ |\\\t)+", r"\\s*", re.escape(part)) for part in re.split(r"\0+", begin)]
    hidden = [last.line[found.start()] for found in re.finditer(r"\0+", begin)]
    between = [r"[0-9][^A-Za-z\n]*?T?[^A-Za-z\n]*?" if one.isdigit() else r"\S+" for one in hidden]
    escaped = "".join(f"{part}{hid}" for part, hid in zip(parts, [*between, ""], strict=True))
    return f"^{escaped or ' *'}" if is_first else f"^{escaped or ' *'}[0-9]{_ANY}"
