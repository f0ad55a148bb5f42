"""Parsing of numbers that programs print, with labels and units; used by the host and by runs.

A line consists of fields: ``Epoch 3 | Speed: 1,234.5 samples/sec | loss 0.5`` has three, each with the words before its
number and the unit after it. Standard library only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, Optional

_THIN = "\u00a0\u2007\u2009\u202f"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_FRAMES = re.compile(r"\r+\n|\x08+\r?|\r")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_UNITS_OF_TIME = {
    "ns": 1e-9, "nanosecond": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "usec": 1e-6, "microsecond": 1e-6,
    "ms": 1e-3, "msec": 1e-3, "millisec": 1e-3, "millisecond": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0,
    "min": 60.0, "minute": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "day": 86400.0,
}  # fmt: skip
_TIME = "(?:" + "|".join(f"{name}s?" for name in sorted(_UNITS_OF_TIME, key=len, reverse=True)) + ")"
_SECOND = r"(?:s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?)"
_DEVICE = r"(?:\ ?/\ ?|\ per\ )(?:gpu|device|chip|core|worker|node|rank|process|replica|card|tpu|npu|user)s?\b"
_NOUN = r"(?:[a-z][a-z_-]*\ ){0,2}[a-z][a-z_]*(?:\(s\))?"

#: Text with digits that is one item: dates, clocks, versions, paths, "10/100", the error after a "+-".
_MASKED = re.compile(
    r"""
      https?://\S+
    | (?<!\w)/?(?:[\w.~-]+/)+[\w.-]*\.[A-Za-z]\w*(?::\d+)?
    | \d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?Z?
    | \d{1,4}/\d{1,2}/\d{2,4}
    | (?:\d+\s?days?,?\s)?(?<![\w.])\d{1,3}:\d\d(?::\d\d)?(?:[.,]\d+)?(?!\w)
    | (?<![\w.])\d+\s?h\s?\d+\s?m(?:in)?(?:\s?\d+(?:\.\d+)?\s?s)?\b
    | (?<![\w.])\d+\s?m(?:in)?\s?\d+(?:\.\d+)?\s?s\b
    | \b0x[0-9a-fA-F]+
    | (?<![\w.])[-+]?(?i:nan|inf(?:inity)?)(?![\w.])
    | (?:\u00b1|\+/-|\+-)\s*[\d.,]+(?:[eE][-+]?\d+)?(?:\s?(?:[nmu\u00b5\u03bc]?s)\b)?
    | (?<![\w.])\d+(?:\.\d+){2,}
    | (?P<fraction>(?<![\w.,])\d[\d.,]*[kKMGT]?\s*/\s*\d[\d.,]*[kKMGT]?(?:i?B)?(?![\w.]))
    """,
    re.VERBOSE,
)
_RUN = re.compile(rf"(?<![\w.])[-+]?(?:\d(?:[\d.]|[,_'{_THIN}](?=\d))*|\.\d+)")
_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+,\d+")  # 1.234,5
_EXPONENT = re.compile(r"[eE][-+]?\d+(?![\w.])")
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
_GROUPED = re.compile(
    rf"[-+]?[1-9]\d{{0,2}}(?:([,_'{_THIN}])\d{{3}}(?:\1\d{{3}})*(?:\.\d*)?|([{_THIN}])\d{{3}}(?:\2\d{{3}})*,\d+)"
)
_SPACED = re.compile(r"[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?(?![\w.:/]|,\d)")
_FACTOR = re.compile(r" ?([kKMGT])(?![A-Za-z])|( ?)B(?= [a-z]+ ?(?:/ ?s|per s))")
_SIZE = re.compile(r"((?:[kKMGTP]i?)?)(B(?:ytes?)?|bytes?|b(?:its?)?)(\ ?/\ ?s(?:ec(?:ond)?)?|ps)?(?![A-Za-z_])")
_FLOPS = re.compile(rf"([kKMGTPE]?)(?:FLOP[Ss]?(?:/s(?:ec)?)?|flops|flop/s|(?<=[GTP])F/s)(?i:({_DEVICE}))?(?![A-Za-z])")
_SPAN = re.compile(rf"({_TIME})(?![A-Za-z_])(?:\x00|(?:\ ?/\ ?|[\ \x00]+per\ )([A-Za-z_]+))?", re.IGNORECASE)
_RATE = re.compile(
    rf"({_NOUN})?({_DEVICE})?(?:\ ?/\ ?|[\ _-]?\bper[\ -]|_per_)({_SECOND})(?![A-Za-z])({_DEVICE})?", re.IGNORECASE
)
_WORD_RATE = re.compile(r"(?:[a-z]+ )?(?<![a-z])([fiwutqrs]ps)(?![A-Za-z])", re.IGNORECASE)
_COUNT = re.compile(
    r"(?:[a-z]+ )?(?:(?:step|epoch|iter|iteration|run|sample|image|img|token|example|word|gpu|device|worker|thread"
    r"|core|node|request|prompt|round|loop)(?:s|\(s\))|batches|processes|times)(?!\w)",
    re.IGNORECASE,
)
_PREFIXED = re.compile(
    r"[kKMGT](?=(?:it|iter|iteration|tok|token|img|im|image|sample|ex|example|word|step|req|request|seq|sequence|item"
    r"|frame|op|row|query|event|record|char|byte|pixel|edge|node|update)s?\b)"
)
_LABEL = re.compile(
    r"""(?P<label>[^\W\d][\w@%/.*+#-]*(?:(?:\ |\ ?/\ ?)[^\W\d][\w@%/.*+#-]*)*(?:\ ?[(\[][^()\[\]\n]{1,40}[)\]])*)
    ["'`)\]*]*\s*(?P<connector>:=|=>|->|[:=|>\u2502\u2503\u2551])?[\s"'`(\[$<~\u2248*]*(?P<wrapper>(?:[\w.]*(?:tensor|array|float\d*)\(\[?)?)\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_LONGEST_LABEL = 80
#: Lines between the columns of a table.
_BARS = ("|", "\u2502", "\u2503", "\u2551")
#: Labels of counts and identifiers, whose numbers have no unit and no digit groups.
_COUNTER = re.compile(
    r"\b(?:steps?|epochs?|iter(?:ation)?s?|batch(?:es)?|updates?|rank|gpu|device|worker|node|process|run|round|fold|trial"
    r"|part|shard|layer|index|idx|version|line|pid|id|port|job|task|host|cpu|thread|rep|seed|size|it|no)\W*$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")


class Unit(NamedTuple):
    """A unit; ``kind`` is time, rate, size or count, ``scale`` converts to s, 1/s or B, ``per`` names what is counted.

    ``fold`` is the factor (K, M, ...) in a unit of counted things, by which the number is multiplied.
    """

    text: str
    kind: str
    scale: float = 1.0
    fold: float = 1.0
    per: str = ""
    by_device: bool = False


class Field(NamedTuple):
    """A number in a line: its position, value, label (with ``connector`` between them) and unit (after it).

    ``end`` is the end of the digits; a factor (K, M, ...) is between it and ``unit_end``. ``unclear``: the number has
    two readings, such as 12,5. A NUL in a label replaces a number in it.
    """

    start: int
    end: int
    value: float
    label: str
    connector: str
    wrapper: str
    unit: Optional[Unit]  # noqa: UP045 - a NamedTuple of Python 3.9
    unit_end: int
    unclear: bool


def redraws_as_lines(text: str) -> str:
    """Return a text without colours and cursor movements; each redraw of a line becomes a line."""
    return _FRAMES.sub("\n", without_colours(text))


def without_colours(text: str) -> str:
    """Return a text without terminal escape sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


@lru_cache(maxsize=4096)
def words(label: str) -> str:
    """Return a label in lower-case words: ``RunningAvgSamplesPerSec`` becomes ``running avg samples per sec``."""
    return " ".join(re.sub(r"[_.\-]+", " ", _CAMEL.sub(" ", label)).lower().split())


def mask_dates_and_detect_counts(line: str) -> tuple[str, bool]:
    """Return a line with dates, clocks, paths, ... replaced by NULs, and whether it has a count such as 10/100."""
    counted = False

    def hide(match: re.Match[str]) -> str:
        nonlocal counted
        counted = counted or match["fraction"] is not None
        return "\0" * len(match[0])

    return _MASKED.sub(hide, line), counted


def unit_of(text: str) -> Unit | None:
    """Return the unit at the start of a text, or None."""
    unit_and_end = _unit_at(text, 0)
    return unit_and_end[0] if unit_and_end else None


def _unit_at(text: str, start: int) -> tuple[Unit, int] | None:
    """Return the unit at a position of a text, and its end, or None."""
    for pattern, make_unit in _UNIT_READERS:
        match = pattern.match(text, start)
        if match:
            return make_unit(match), match.end()
    return (Unit("%", "count"), start + 1) if text[start : start + 1] == "%" else None


def _power(prefix: str) -> float:
    return (1024.0 if prefix.endswith("i") else 1000.0) ** _POWERS[prefix[:1].lower()]


def _size(match: re.Match[str]) -> Unit:
    scale = _power(match[1]) / (8 if match[2].startswith("b") and not match[2].startswith("by") else 1)
    return Unit(match[0], "rate" if match[3] else "size", scale, per="byte")


def _flops(match: re.Match[str]) -> Unit:
    return Unit(match[0], "rate", _power(match[1]), per="flop", by_device=bool(match[2]))


def _span(match: re.Match[str]) -> Unit:
    name = match[1].lower()
    scale = _UNITS_OF_TIME.get(name) or _UNITS_OF_TIME[name[:-1]]
    text = match[0].strip("\0") if not match[2] else f"{match[1]}/{match[2]}"
    return Unit(text, "time", scale, per=(match[2] or "").lower())


def _rate(match: re.Match[str]) -> Unit:
    noun, second = match[1] or "", match[3].lower()
    prefix = _PREFIXED.match(noun)
    fold = _power(prefix[0]) if prefix else 1.0
    text = match[0].strip()[len(prefix[0]) :] if prefix else match[0].strip()
    scale = 1 / (_UNITS_OF_TIME.get(second) or _UNITS_OF_TIME[second[:-1]])
    return Unit(text, "rate", scale, fold, noun[prefix.end() :] if prefix else noun, bool(match[2] or match[4]))


def _word_rate(match: re.Match[str]) -> Unit:
    return Unit(
        match[0], "rate", per={"f": "frame", "w": "word", "u": "step", "t": "token"}.get(match[1][0].lower(), "")
    )


_UNIT_READERS = (
    (_SIZE, _size),
    (_FLOPS, _flops),
    (_SPAN, _span),
    (_RATE, _rate),
    (_WORD_RATE, _word_rate),
    (_COUNT, lambda found: Unit(found[0], "count")),
)


@lru_cache(maxsize=4096)
def fields(line: str) -> tuple[Field, ...]:
    """Return the numbers of one line, from left to right."""
    text, _ = mask_dates_and_detect_counts(line)
    read_fields: list[Field] = []
    search_start = 0
    for run in _RUN.finditer(text):
        if run.start() < search_start:
            continue
        for one in _read_fields(text, search_start, run, read_fields):
            field = _within_label(text, read_fields, one)
            read_fields.append(field)
            search_start = field.unit_end
    return tuple(read_fields)


def _read_fields(text: str, begin: int, run: re.Match[str], previous_fields: list[Field]) -> list[Field]:
    """Return the field of a run of digits, several fields for a list, or none if it is part of a word."""
    digits, start = run[0].rstrip("."), run.start()
    label = _LABEL.search(text, max(begin, start - _LONGEST_LABEL), start)
    if _GROUPED.fullmatch(digits):
        return _field(text, label, start, start + len(digits), digits, unclear=False)
    if _PLAIN.fullmatch(digits):
        spaced = _SPACED.match(text, start)
        if spaced and _takes_groups(label):
            return _field(text, label, start, spaced.end(), spaced[0], unclear=False)
        previous = previous_fields[-1] if previous_fields and previous_fields[-1].end == start - 1 else None
        tail = previous and re.fullmatch(r"[1-9]\d{0,2} \d{3}", text[previous.start : start + 3])
        is_own_field = previous and (is_counter(words(previous.label)) or is_other(words(previous.label)))
        unclear = bool(tail and not is_own_field and not label and not digits[3:4].isdigit())
        return _field(text, label, start, start + len(digits), digits, unclear=unclear)
    parts = digits.split(",")
    if "," in digits and all(_PLAIN.fullmatch(part) for part in parts):
        clear = any("." in part for part in parts[:-1]) and not _POINTS.fullmatch(digits)
        ends = [start + len(",".join(parts[: number + 1])) for number in range(len(parts))]
        new_fields = [
            _field(text, None if number else label, end - len(part), end, part, unclear=not clear)
            for number, (part, end) in enumerate(zip(parts, ends))
        ]
        return [field for fields_of in new_fields for field in fields_of]
    return []


def _takes_groups(label: re.Match[str] | None) -> bool:
    """Return whether ``1 234`` after this label is one number; after a step or a rank it would be two."""
    if label is None or is_counter(words(label["label"])):
        return False
    return bool(label["connector"]) or re.search(r"throughput|speed|per s|/ ?s", words(label["label"])) is not None


def _field(text: str, label: re.Match[str] | None, start: int, end: int, digits: str, *, unclear: bool) -> list[Field]:
    exponent = _EXPONENT.match(text, end)
    if re.search(rf"[{_THIN}]\d+,\d+\Z", digits):
        digits = digits.replace(",", ".")
    value = float(re.sub(rf"[,_' {_THIN}]", "", digits) + (exponent[0] if exponent else ""))
    end = exponent.end() if exponent else end
    factor = _FACTOR.match(text, end)
    if factor:
        value *= _power(factor[1]) if factor[1] else 1e9
    value_end = factor.end() if factor else end
    behind = value_end + len(re.match(r"[ \t\x00]{0,3}", text[value_end:])[0])  # type: ignore[index]  # it matches anything
    unit, unit_end = _unit_at(text, behind) or (None, value_end)
    if unit and not _is_own_unit(text, label, unit, behind > value_end, unit_end):
        unit, unit_end = None, value_end
    if not unit and not factor and re.match(r"[A-Za-z_\u00b5]", text[end : end + 1]):
        return []
    value *= unit.fold if unit else 1
    if label and label["connector"] in _BARS and unit and unit.kind in ("rate", "time"):
        label = None  # it belongs to another column
    name, connector, wrapper = (label["label"], label["connector"] or "", label["wrapper"]) if label else ("", "", "")
    return [Field(start, end, value, name, connector, wrapper, unit, unit_end, unclear)]


def _is_own_unit(text: str, label: re.Match[str] | None, unit: Unit, apart: bool, end: int) -> bool:
    """Return whether a unit belongs to the number before it; not in ``step 100 tok/s 123`` or ``0.5 tok/s: 123``."""
    if not apart or unit.text == "%":
        return True
    if re.match(r"[\"')\]]*\s*[:=](?!\s*[A-Za-z])", text[end:]):
        return False
    if label and label["connector"] and unit.kind == "rate" and unit.text.lower() in words(label["label"]).split():
        return False
    followed = re.match(r"\s+[-+]?\.?\d", text[end:]) is not None
    if unit.kind == "count":
        return not followed
    if not followed or not label or label["connector"]:
        return True
    own_label = words(label["label"])
    kind = "time" if re.search(r"time|dt$|latency", own_label) else ""
    return not (is_counter(own_label) or label_names_speed(own_label) or is_other(own_label)) or kind == unit.kind


def _within_label(text: str, previous_fields: list[Field], field: Field) -> Field:
    """Return a field with its whole label if that contains a number, as in ``Total img/sec on 4 GPUs: 123``."""
    previous = previous_fields[-1] if previous_fields else None
    if (
        not previous
        or previous.connector
        or not field.connector
        or not label_names_speed(words(previous.label))
        or not field.label
    ):
        return field
    if previous.unit and previous.unit.kind == "rate":
        return field
    between = text[previous.end : field.start]
    if re.search(r"[,;|\t\0]|  ", between.rstrip().rstrip(":=").rstrip()):
        return field
    previous_fields.pop()
    label = re.sub(r"[\s\"':=>|(\[]*\Z", "", between)
    opened = label.count("(") < label.count(")")
    return field._replace(label=f"{previous.label}{' (' if opened and '(' not in previous.label else ' '}\0{label}")


_OF_LABEL = re.compile(
    r"(?:throughput|\bspeed\b)(?!/[a-z]{2})|bandwidth|\b[fiwutqrs]ps\b|\bper s(?:ec(?:ond)?)?\b"
    r"|(?:/|\bit) ?s(?:ec(?:ond)?s?)?\b"
    r"|\b[kmgtp]?flop/?s?\b"
)
_OTHER = re.compile(
    r"loss|\blr\b|learning|\bacc(?:uracy)?\b|\btop ?\d|@|\bmem(?:ory)?\b|\beta\b|remaining|\bleft\b|\bbytes\b|norm\b"
    r"|\bgrad|\bppl\b|perplexity|bleu|rouge|\bf1\b|\bauc\b|\bm?ap\b|\bm?iou\b|precision|recall|\bscale\b|\bwd\b|decay|momentum"
    r"|\btemp|\butil|\bm?[mh]fu\b|\bparam|\bsize\b|\bbsz\b|\bseed\b|dropout|score|reward|\bkl\b|entropy|\berr(?:or)?\b|\bratio\b"
    r"|speed ?up|alloc|reserved|cached|\btarget\b|expected|theoretical|\blimit|\bmin(?:imum)?\b|\bstd|stddev|deviation"
    r"|\bp\d\d|percentile|\bpeak\b|\bcount\b|\bnum\b|\bvs\b|budget|\bmax(?:imum)?\b|increase|decrease|\bdiff"
)


def label_names_speed(label: str) -> bool:
    """Return whether a label names a speed."""
    return _OF_LABEL.search(label) is not None


def is_other(label: str) -> bool:
    """Return whether a label names a number that is never a speed: a loss, a learning rate, memory."""
    return _OTHER.search(label) is not None


def is_counter(label: str) -> bool:
    """Return whether a label ends with a word for a count or an identifier: a step, a rank."""
    return _COUNTER.search(label) is not None


def number_around(line: str, start: int, end: int, *, literally: bool) -> Field:
    """Return the complete number around ``line[start:end]``, a pattern's group: 1,234.5 for its ``1``.

    ``literally``: the pattern defines where the number begins and ends. Raises ValueError, with the reason.
    """
    text = line[start:end]
    if literally:
        inside = fields(text)
        if len(inside) == 1 and not inside[0].unclear:
            field = inside[0]._replace(start=start + inside[0].start, end=start + inside[0].end)
            exact = [each for each in fields(line) if (each.start, each.end) == (field.start, field.end)]
            return exact[0] if exact else field
    overlapping = [field for field in fields(line) if field.start < end and field.end > start]
    if len(overlapping) == 1 and not overlapping[0].unclear:
        return overlapping[0]
    if not overlapping and _PLAIN.fullmatch(text) and not re.match(r"[\d.,_]?\d", line[end : end + 2]):
        return Field(start, end, float(text), "", "", "", None, end, unclear=False)  # part of a clock, a word or 10/100
    if not overlapping:
        raise ValueError(f"{text[:60]!r} is no number")
    excerpt = line[overlapping[0].start : overlapping[-1].end][:60]
    raise ValueError(f"{excerpt!r} is no number that can be read in one way only: {text[:60]!r} was found in it")


def converted(field: Field, wanted: str, better: str) -> float:
    """Return a field's number in the unit ``wanted``; s/it and it/s are converted by taking the reciprocal.

    Without a wanted unit the number is unchanged, or its reciprocal if ``better`` is the other direction: 2 s/it is 0.5
    if higher is better. Raises ValueError for incompatible units.
    """
    printed, target = field.unit, unit_of(wanted) if wanted else None
    if printed is None or printed.kind == "count":
        return field.value
    if target is None or target.kind == "count":
        usual_direction = {"rate": "higher", "time": "lower"}.get(printed.kind)
        turned = printed.per and usual_direction and better and usual_direction != better
        if not turned:
            return field.value
        if not field.value:
            raise ValueError(f"0 {printed.text} cannot be turned round")
        return 1 / (field.value * printed.scale)
    base = field.value * printed.scale
    if {printed.kind, target.kind} == {"rate", "time"} and base:
        base = 1 / base
    elif printed.kind != target.kind:
        raise ValueError(f"it is printed in {printed.text!r}, which is nothing that {wanted!r} can be")
    return base / target.scale / target.fold
