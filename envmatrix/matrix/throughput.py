"""Which number of a program's output says how fast it was: taken where exactly one line looks like a throughput."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
#: What is counted: a rate in bytes is a download's, s/it and the like are times.
_UNIT = r"(?!(?:[kKMGT]i?)?[bB](?:yte|it)?s?\b)[A-Za-z]+"
_RATE = rf"{_UNIT}\s?/\s?s(?:ec(?:ond)?s?)?\b|{_UNIT} per sec(?:ond)?s?\b|[kMGTP]?FLOPS\b|[kMGTP]?FLOP/s\b"
_LABELLED = re.compile(
    rf"""(?P<label>["']?[A-Za-z][\w ./()-]*?(?:throughput|per[ _]sec(?:ond)?|_per_s\b|/s(?:ec)?\b|FLOPS)"""
    rf"""[\w ./()-]*?["']?)"""
    rf"\s*[:=]\s*(?P<number>{_NUMBER})",
    re.IGNORECASE,
)
_BARE_LABEL = re.compile(rf"""(?P<label>["']?throughput["']?)\s*(?:[:=]|is)?\s*(?P<number>{_NUMBER})""", re.IGNORECASE)
_WITH_UNIT = re.compile(rf"(?<![\d.,])(?P<number>{_NUMBER})\s*(?P<unit>{_RATE})")
_UNIT_AFTER = re.compile(rf"\s*(?P<unit>{_RATE})")
#: A progress bar (tqdm, rich): its rate is the one of a moment, and turns into s/it when it gets slow.
_BAR = re.compile(r"\d+%\||\d+/\d+ \[|\[\d+:\d\d<|it/s\]|\bit/s\b|\r.*\d+%")
_PYTEST_BENCHMARK = re.compile(r"^-+ benchmark[^\n]*: \d+ tests? -+$", re.MULTILINE)
_STEERING = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


_COUNTED = re.compile(r"^(?P<words>[A-Za-z\[(#][A-Za-z \[(#:=_-]*)(?P<number>[0-9]+)\b(?!\.[0-9])", re.MULTILINE)
#: Fewer lines that count are no steps: a program prints as many epochs.
_FEWEST_STEPS = 20


@dataclass(frozen=True)
class Throughput:
    """A regular expression that finds one number of an output, what it is called there, its last value and its unit."""

    regex: str
    label: str
    value: float
    unit: str = ""


def candidates(output: str) -> list[Throughput]:
    """Return every number that looks like a throughput, each once however often it is printed; its last value."""
    found: dict[str, Throughput] = {}
    for line in output.split("\n"):
        for one in _of_line(_STEERING.sub("", line)):
            found[one.regex] = one
    return list(found.values())


def counts_steps(output: str) -> str:
    """Return the pattern of the one kind of line that counts up evenly, as steps do; '' where there is none or several.

    Lines of an output whose middle was cut still count up in its last part.
    """
    counted: dict[str, list[int]] = {}
    for line in _COUNTED.finditer(_STEERING.sub("", output)):
        counted.setdefault(line["words"], []).append(int(line["number"]))
    found = [words for words, numbers in counted.items() if len(numbers) >= _FEWEST_STEPS and _is_even(numbers)]
    return f"^{_words(found[0])}[0-9]+" if len(found) == 1 else ""


def _is_even(numbers: list[int]) -> bool:
    strides = {after - before for before, after in itertools.pairwise(numbers)}
    return len(strides) == 1 and min(strides) > 0


def is_of_pytest_benchmark(output: str) -> bool:
    """Say whether an output holds pytest-benchmark's table: it repeats what it measures until a time is spent."""
    return _PYTEST_BENCHMARK.search(_STEERING.sub("", output)) is not None


def _of_line(line: str) -> list[Throughput]:
    if _BAR.search(line):
        return []
    labelled = _LABELLED.search(line) or _BARE_LABEL.search(line)
    if labelled:
        label, after = labelled["label"].strip(), _UNIT_AFTER.match(line, labelled.end())
        regex = rf"{_words(label)}\s*(?:[:=]|is)?\s*({_NUMBER})"
        return _usable(regex, label.strip("\"'"), labelled["number"], after["unit"] if after else "")
    rates = list(_WITH_UNIT.finditer(line))
    if len(rates) != 1:
        return [
            one
            for rate in rates
            for one in _usable(rf"({_NUMBER})\s*{_words(rate['unit'])}", rate["unit"], rate[1], rate["unit"])
        ]
    before = re.search(r"([A-Za-z][A-Za-z _-]*)\s*[:=]?\s*\Z", line[: rates[0].start()])
    label, unit = (before[1].strip() if before else ""), rates[0]["unit"]
    start = rf"{_words(label)}\s*[:=]?\s*" if label else ""
    return _usable(rf"{start}({_NUMBER})\s*{_words(unit)}", f"{label} {unit}".strip(), rates[0]["number"], unit)


def _words(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")


def _usable(regex: str, label: str, number: str, unit: str) -> list[Throughput]:
    """Return the number where it can be read back as one: neither 1,234.5 nor 0."""
    try:
        value = float(number)
    except ValueError:
        return []
    return [Throughput(regex, label, value, unit)] if value > 0 else []
