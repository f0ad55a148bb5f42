"""Find numbers in a program's output that measure its speed, and classify them as rates or times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envmatrix.system import shared_bench_modules as bench

#: What rates and times measure, most informative first: samples per second are preferred to steps per second.
SAMPLES, TOKENS, STEPS, FLOPS, BYTES, STEP_TIME, UNSPECIFIED_TIME, EPOCH_TIME = range(8)

#: Longer lines are data, not messages.
_MAX_LINE_LENGTH = 2000
_TOKENS = re.compile(r"\b(?:tok(?:en)?s?|words?|w|tps|wps)\b")
_STEPS = re.compile(r"\b(?:its?|iters?|iterations?|steps?|batch(?:es)?|updates?|ups|epochs?|loops?)\b")
_SUMMARY = re.compile(r"\b(?:avg|averaged?|mean|total|overall|final|aggregated?|summary|global|running)\b")
_NOT_NOUNS = re.compile(rf"{_SUMMARY.pattern}|\b(?:throughput|speed|rate|per|s|secs?|seconds?|curr(?:ent)?)\b")
_BY_DEVICE = re.compile(
    r"(?:/ ?|\bper )(?:gpu|device|chip|core|worker|node|rank|process|replica|card|tpu|npu|user)s?\b"
)
_TIMES = re.compile(
    r"\b(?:time|dt|latency|duration|timing|step avg|avg step)\b"
    r"|(?<![/\w])(?:time|s|ms|us|sec|secs|seconds) ?(?:/|per) ?[a-z]+"
    r"|(?<!per )\b(?:seconds|secs|ms)\b"
)
_PER_SOMETHING = re.compile(
    r"(?:/ ?|\bper )(?:it|iter|iteration|step|batch|image|img|sample|token|tok|request|epoch|call|run|item|example"
    r"|update)s?\b"
)
_STEP_NOUNS = re.compile(
    r"\b(?:step|iter|iteration|batch|inference|forward|update|token|epoch) (?:time|timing|dt|latency|duration)\b"
    r"|\blatency\b|\(mean|\bstep avg\b"
)
#: Times of the whole run, of a part of a step, or of one among several similar parts.
_OTHER_TIMES = re.compile(
    r"\b(?:total|elapsed|data|load(?:ing|er)?|wall|eta|remaining|left|compile|compilation|start|startup|init|setup"
    r"|train(?:ing)?(?! (?:step|iter|iteration|batch)\b)|cpu|user|sys|save|checkpoint|stamp|since|last|run"
    r"|real|end|to|took|cost|finish\w*|first|comm\w*"
    r"|val(?:id(?:ation)?)?|eval(?:uation)?|sleep|wait\w*|timeout|limit|p\d\d)\b"
)
_UNIT_IN_LABEL = re.compile(r"\b(ns|us|\u00b5s|ms|msec|s|secs?|seconds?|minutes?)\b\)?(?: ?(?:/|per) ?([a-z]+))?")
_TRAINING = re.compile(
    r"(?<![A-Za-z])train(?:ing|er)?(?![A-Za-z])(?![ _-]*(?:loss|acc|ppl|err|metric|score|auc|split|set|data))",
    re.IGNORECASE,
)
_EVALUATION = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validat(?:ion|e|ing)|eval|evaluat(?:ion|e|ing)|test(?:ing)?|dev|predict\w*)(?![A-Za-z])"
    r"(?![ _-]*(?:loss|acc|ppl|err|metric|score|auc|time))",
    re.IGNORECASE,
)
#: Words for work before or besides the main work, such as warm-up or downloads.
SIDE_PHASE = re.compile(
    r"(?<![A-Za-z])(?:warm-?_? ?up|adding|download\w*|upload\w*|fetch\w*|load(?:ing|er)?|data ?_?loader"
    r"|tokeniz\w*|map(?![\w@])|filter\w*|generating \w+ split|compil(?:ing|ation)|preprocess\w*|postprocess\w*"
    r"|resolv\w*|extract\w*|sanity check\w*|saving|writing (?:model|checkpoint|weight)\w*)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_RANK = re.compile(
    r"(?<![A-Za-z])(?:(?:local|global)[ _]?)?(?:rank|gpu|worker|process|proc|replica|device|cuda|trainer|host|node)"
    r"[\s\"':=_#\[-]{0,3}(\d+)(?![\w.%])|^\[\d+,(\d+)\]",
    re.IGNORECASE,
)


#: A line that says what the following numbers belong to.
_TITLE = re.compile(
    r"^\W*(?:(?:benchmark|model|config(?:uration)?|case|scenario|experiment|backend|dtype|variant|kernel|workload|command)"
    r"(?: ?#?\d+)?[:=] *|benchmarking )[A-Za-z\"'/]",
    re.IGNORECASE,
)
#: A line that opens an indented block, as in JSON and YAML, and the number of a block in its name.
_OPENS_BLOCK = re.compile(r"""\s*(?:["']?([^\W\d][^"':|]{0,60})["']?: *)?[\[{]?\s*\Z""")
#: A heading: ``=== Training ===`` or ``## resnet18``.
_HEADING = re.compile(
    r"\s*(?:([=*#~-])\1+\s*(?=.*\1\1\s*\Z)|#{1,4} )(?!(?i:results?|summary|final|report)\b)([A-Za-z].*)"
)
_BLOCK_NUMBER = re.compile(r"(?<=[A-Za-z][ _#-])\d+")
#: Settings printed as a Python object: ``Namespace(lr=0.1, qps=10)``.
_SETTINGS = re.compile(r"(?:Namespace|Config|Args|Arguments|Settings|Params|Options)\([^()]*(?:\([^()]*\)[^()]*)*\Z")
#: perf stat: ``3227 page-faults  #  22.882 K/sec``.
_COMMENT = re.compile(r"\S\s+#\s+\Z")
#: FLOPs are a count; FLOPS and FLOP/s are a speed.
_FLOPS_COUNTED = re.compile(r"FLOPs(?![/\w])")


@dataclass(frozen=True)
class Reading:
    """One number on one line. ``order`` is what it measures; ``key`` is equal for all lines of its kind.

    ``phase`` is train, eval, aside or ''. ``rank`` is the process that printed it, if the line has one. ``total`` is
    the last number of a bar without a label, which distinguishes two bars. ``extra`` is a label only this kind has.
    """

    line: str
    number: int
    field: bench.NumberField
    better: str
    unit: str
    order: int
    phase: str
    rank: str
    summary: bool
    by_device: bool
    second: bool
    total: str
    key: tuple[str, ...]
    extra: str = ""

    def counts_the_same_as(self, summary: Reading) -> bool:
        """Return whether a summary can cover this number: both count the same thing, or one names nothing."""
        descriptions = [_NOT_NOUNS.sub("", f"{reading.key[0]} {reading.unit}".lower()) for reading in (self, summary)]
        nouns = [{word.rstrip("s") for word in re.findall(r"[^\W\d_]+", text)} for text in descriptions]
        return not all(nouns) or bool(nouns[0] & nouns[1])


def speed_readings(lines: Sequence[str]) -> Iterator[Reading]:
    """Yield every number in these lines that measures a speed."""
    has_titles = len({line for line in lines if _TITLE.match(line)}) > 1
    title = ""
    for number, (line, block) in enumerate(zip(lines, _blocks(lines), strict=True)):
        title = line if has_titles and _TITLE.match(line) else title
        if len(line) < _MAX_LINE_LENGTH and re.search(r"\d", line):
            yield from _line_readings(line, number, title, block)


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    """Yield, for each line, its heading and the indented blocks that contain it, as in printed JSON or YAML.

    Headings count if none is repeated: those of epochs and of evaluations between them are.
    """
    headings = [re.sub(r"(?<![A-Za-z])\d+", "", match[2]) if (match := _HEADING.match(line)) else "" for line in lines]
    counted = 1 < len({*headings}) - 1 == len(lines) - headings.count("")
    heading, opened = "", list[tuple[int, str]]()
    for line, own_heading in zip(lines, headings, strict=True):
        heading = own_heading if own_heading and counted else heading
        indent = len(line) - len(line.lstrip())
        while line.strip() and opened and opened[-1][0] >= indent:
            opened.pop()
        yield " ".join([heading, *(name for _, name in opened)])
        if line.strip() and (match := _OPENS_BLOCK.match(line)):
            opened.append((indent, _BLOCK_NUMBER.sub("", match[1] or "")))


def _line_readings(line: str, number: int, title: str, block: str) -> Iterator[Reading]:
    fields = bench.number_parser.fields(line)
    text, counts_flops = bench.number_parser.mask_dates_and_detect_counts(line)
    counts_flops = counts_flops or any(
        bench.number_parser.is_counter(bench.number_parser.words(field.label)) for field in fields
    )
    prefix = re.sub(r"\0+", "\0", text[: fields[0].start]) if fields else ""
    for field in fields:
        if field.value < 0 or _is_setting(field, text):
            continue
        if speed := _speed_order(field, text, counts_flops=counts_flops):
            yield _make_reading(line, number, field, speed, (text[: field.start], prefix, title, block))


def _is_setting(field: bench.NumberField, text: str) -> bool:
    """Return whether a number is part of printed settings, a list or a comment, and so not a measured speed."""
    preceding = text[: field.start]
    is_list_item = preceding.endswith("[") and re.match(r",\s*[-+.\d]", text[field.end :])
    return bool(is_list_item or _SETTINGS.search(preceding) or _COMMENT.search(preceding))


def _make_reading(
    line: str, number: int, field: bench.NumberField, speed: tuple[int, str], context: tuple[str, str, str, str]
) -> Reading:
    order, unit = speed
    text, prefix, title, block = context
    label = bench.number_parser.words(field.label)
    description = label or bench.number_parser.words(re.split(r"[,;|]|\d", text)[-1])
    description_and_unit = f"{description} {field.unit.text.lower() if field.unit else ''}"
    second = not label and re.search(r"\d\S*(?: [a-z/]+)? *\([^()]*\Z", text) is not None
    rank = _RANK.search(line[: field.start])
    phase = _phase(field.label, f"{block} {text}")
    totals = [] if label else re.findall(r"\d\s*/\s*(\d+)(?![\d.])", line[: field.start])
    per = re.sub(r"s\b", "", (field.unit.per if field.unit else "").lower())
    by_device = bool((field.unit and field.unit.by_device) or _BY_DEVICE.search(label))
    statement = (label, "") if label else (" ".join(re.findall(r"[^\W\d_]+", prefix.lower())), per)
    return Reading(
        line,
        number,
        field,
        "lower" if order >= STEP_TIME else "higher",
        unit,
        order,
        phase,
        next(filter(None, rank.groups()), "") if rank else "",
        bool(_SUMMARY.search(description_and_unit)),
        by_device,
        second,
        "".join(totals[-1:]),
        (
            *statement,
            title,
            block,
            phase,
            "second" if second else "",
            "by device" if by_device else "",
            "" if label else _unit_kind(field),
        ),
    )


def is_evaluation_label(label: str) -> bool:
    """Return whether a label belongs to an evaluation, such as val_loss."""
    return re.match(r"(?:val|valid|eval|test)_", label) is not None


def _unit_kind(field: bench.NumberField) -> str:
    """Return the unit's kind for a number without a label; '' for a unit per item: 5 it/s equals 0.2 s/it."""
    return field.unit.kind if field.unit and not field.unit.per else ""


def _phase(label: str, preceding: str) -> str:
    for text in (label, preceding):
        train, evaluates = _TRAINING.search(text), _EVALUATION.search(text)
        if SIDE_PHASE.search(text) and not train:
            return "aside"
        if bool(train) != bool(evaluates):
            return "train" if train else "eval"
    return ""


def _speed_order(field: bench.NumberField, text: str, *, counts_flops: bool) -> tuple[int, str] | None:
    """Return what a number measures, and its unit; None if it is not a speed."""
    label = bench.number_parser.words(field.label)
    if bench.number_parser.is_other(label):
        return None
    unit, says_speed = field.unit, bench.number_parser.label_names_speed(label)
    if (
        says_speed
        and not (unit or field.connector or _BY_DEVICE.search(label))
        and bench.number_parser.is_counter(label)
    ):
        return None  # a count after the unit of another number: ``tokens/s epoch 3``
    if _FLOPS_COUNTED.search(f"{field.label} {unit.text if unit else ''}"):
        counts_flops = (
            counts_flops
            or re.search(r"achiev|throughput|perf|speed|\d ?[mun\u00b5]?s\b", f"{label} {text}") is not None
        )
        return (FLOPS, unit.text if unit else "") if counts_flops else None
    if unit is None:
        return (
            (_rate_order(label), "")
            if says_speed and not _is_time_label(label)
            else _time_category(label, "", counts_flops=counts_flops)
        )
    if unit.kind == "rate":
        is_speed = says_speed or not re.search(r"\btime\b|latency", label)
        order = _rate_order(label)
        if unit.per and not (says_speed and order in (FLOPS, BYTES)):
            order = _rate_order(unit.per.lower())
        is_transfer_rate = order != BYTES or re.search(r"throughput|bandwidth|speed|per s", label)
        return (order, unit.text) if is_speed and is_transfer_rate else None
    if unit.kind != "time":
        return None
    if unit.per:
        return EPOCH_TIME if unit.per.startswith("epoch") else STEP_TIME, unit.text
    follows = re.match(r" ?[A-Za-z]", text[field.unit_end :])
    return None if says_speed or follows else _time_category(label, unit.text, counts_flops=counts_flops)


def _is_time_label(label: str) -> bool:
    return re.search(r"(?<![/\w])(?:s|sec|secs|ms|us|seconds) ?(?:/|per) ?(?!s\b|gpu|device)[a-z]", label) is not None


def _time_category(label: str, unit: str, *, counts_flops: bool) -> tuple[int, str] | None:
    """Return what a time measures; None unless its label or its line describes a step or another unit of work."""
    per = _PER_SOMETHING.search(label) is not None
    if not _TIMES.search(label) or (_OTHER_TIMES.search(label) and not per):
        return None
    if not (per or counts_flops or _STEP_NOUNS.search(label)):
        return None
    unit_match = _UNIT_IN_LABEL.search(re.sub(r"\btime per \w+", "", label))
    unit = unit or (
        f"{unit_match[1]}/{unit_match[2]}" if unit_match and unit_match[2] else unit_match[1] if unit_match else ""
    )
    return (EPOCH_TIME if "epoch" in label else STEP_TIME if per else UNSPECIFIED_TIME), unit


def _rate_order(noun: str) -> int:
    """Return what a rate counts, from the words of its unit or label."""
    if re.search(r"\b[fi]ps\b", noun):
        return SAMPLES
    if re.search(r"flop", noun):
        return FLOPS
    if re.search(r"\bbytes?\b|bandwidth|\b[kmgt]i?b(?:its?)?\b", noun):
        return BYTES
    words = noun.replace("_", " ")
    return TOKENS if _TOKENS.search(words) else STEPS if _STEPS.search(words) else SAMPLES
