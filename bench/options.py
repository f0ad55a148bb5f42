"""The workload options listed in ``options.json``: conversion from text, defaults, and rules for combinations.

Standard library only, and no import of ``bench``: the host loads this file by its path (docs/record.md), so that
matrix.yaml and the command line agree.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "options.json")
_TRUTH = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
#: ``package.module:name``, as in an entry point.
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

#: The variable with the number of processes if the option is not set, so that an environment can choose it.
PROCESSES_VARIABLE = "BENCH_PROCESSES"
_DEFAULT_PROCESSES = 2
_MOST_PROCESSES = 4096
#: Strategies with one process per share of the batch.
WITH_RANKS = ("ddp", "ddp-pipeline", "fsdp", "lightning", "horovod")

Value = Union[bool, int, float, str, list[int], None]
#: One entry of ``options`` or of ``rules`` in options.json.
Entry = Mapping[str, Any]
#: The value of every option of a workload by its name; options.json says of what type each is.
Options = Mapping[str, Any]


class OptionError(ValueError):
    """An invalid value of an option: ``text`` is the requirement, ``remedy`` what to write instead."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.text = text
        self.remedy = remedy


class Broken(NamedTuple):
    """A rule that a combination breaks: its message and its options, the offending ones first."""

    message: str
    options: tuple[str, ...]


@functools.lru_cache(maxsize=1)
def load() -> Mapping[str, Any]:
    """Return the parsed ``options.json`` (its format is in docs/record.md)."""
    with open(_FILE, encoding="utf-8") as file:
        document: Mapping[str, Any] = json.load(file)
    return document


def listed() -> Mapping[str, Entry]:
    """Return every option's entry by its name."""
    return {option["name"]: option for option in load()["options"]}


def defaults() -> dict[str, Value]:
    """Return every option with its default value."""
    return {name: option["default"] for name, option in listed().items()}


def convert(option: Entry, value: object) -> Value:
    """Convert ``value`` to the option's type, and check its choices and range.

    ``value`` is one text, or None or a list of texts if matrix.yaml allows them. Raises OptionError.
    """
    if option.get("optional") and (value is None or str(value).strip().lower() in ("none", "null")):
        return None
    if option["type"] == "list-of-int":
        items = value if isinstance(value, list) else str(value).split(",") if value else []
        if not items:
            raise OptionError("needs at least one whole number")
        return [_in_range(option, _read("int", str(item))) for item in items]
    if not isinstance(value, str):
        raise OptionError(f"must be one {option['type']}")
    return _in_range(option, _in_choices(option, _read(option["type"], value)))


#: How to read a text as each type of option, and what a text must be for that.
_READERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda text: _TRUTH[text.lower()], "true or false"),
    "str": (str, "a text"),
}


def _read(kind: str, text: str) -> Any:
    reader, wanted = _READERS[kind]
    try:
        return reader(text.strip())
    except (ValueError, KeyError):
        raise OptionError(f"must be {wanted}, not {text.strip()!r}") from None


def _in_choices(option: Entry, value: Any) -> Any:
    choices = option.get("choices")
    if not choices or value in choices:
        return value
    group = option.get("entry_points")
    if group:
        installed_names = installed_entry_points(group)
        if value in installed_names or is_reference(value):
            return installed_names.get(value, value)
        choices = [*choices, *sorted(installed_names)]
    names, own = list(map(str, choices)), ", or package.module:function of your own" if group else ""
    matches = difflib.get_close_matches(str(value), names, n=1)
    raise OptionError(
        f"cannot be {value!r}", f"did you mean {matches[0]}?" if matches else f"known: {', '.join(names)}{own}"
    )


def _in_range(option: Entry, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    low, high = option.get("minimum"), option.get("maximum")
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError("must be a finite number")
    if low is not None and value < low:
        raise OptionError(f"must be at least {low}, not {value}")
    if high is not None and value > high:
        raise OptionError(f"must be at most {high}, not {value}")
    return value


def installed_entry_points(group: str) -> dict[str, str]:
    """Return the installed entry points of ``group``: {name: ``package.module:name``}."""
    from importlib import metadata  # imported here: it takes 20 ms and is rarely needed

    points: Any = metadata.entry_points()  # Python 3.9 returns a dict
    group_points = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
    return {point.name: point.value for point in group_points}


def is_reference(value: object) -> bool:
    """Return whether a value refers to an object of another package (``package.module:name``)."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def broken_rules(values: Mapping[str, Value]) -> list[Broken]:
    """Return every rule that a combination of values breaks; missing options have their defaults."""
    all_values = {**defaults(), **values}
    return [broken for rule in load()["rules"] for broken in _broken(rule, all_values)]


def _broken(rule: Entry, values: Mapping[str, Value]) -> Iterator[Broken]:
    if not all(_holds(test, values[name]) for name, test in rule["when"].items()):
        return
    # Of a reference only the other package knows which options it supports.
    required = rule["require"].items()
    broken_names = [
        name for name, allowed in required if values[name] not in allowed and not is_reference(values[name])
    ]
    if broken_names:
        current_values = ", ".join(f"{name} is {json.dumps(values[name])}" for name in broken_names)
        yield Broken(f"{rule['message']} (here {current_values})", (*broken_names, *rule["when"]))


def _holds(test: Entry, value: Any) -> bool:
    if "above" in test:
        return value is not None and bool(value > test["above"])
    if "not" in test:
        return value not in test["not"]
    return value in test["is"]


def requirements(values: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
    """Yield (option and value, requirement) for every chosen value with ``needs`` in ``options.json``."""
    for name, option in listed().items():
        value, needs = values[name], option.get("needs", {})
        value_text = f"{name}: {json.dumps(value)}"
        for key in (json.dumps(value).strip('"'), "*"):
            if key in needs and (key != "*" or value != option["default"]):
                yield value_text, needs[key]
        if option.get("entry_points") and is_reference(value):
            yield value_text, {"object": value}


def has_ranks(values: Mapping[str, Any]) -> bool:
    """Return whether the job starts several processes."""
    return values["parallel"] in WITH_RANKS or bool(values["collective"] != "none")


def processes(values: Mapping[str, Any], variables: Mapping[str, str]) -> int:
    """Return the number of processes: the option, otherwise the variable, otherwise 2; always 1 without ranks."""
    if not has_ranks(values):
        return 1
    if values["processes"] is not None:
        return int(values["processes"])
    text = variables.get(PROCESSES_VARIABLE, str(_DEFAULT_PROCESSES))
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_PROCESSES:
        raise OptionError(f"{PROCESSES_VARIABLE} must be a number from 1 to {_MOST_PROCESSES}, not {text!r}")
    return int(text)


def effective_batch(values: Mapping[str, Any], world: int) -> int:
    """Return the number of samples per optimiser step, over all processes."""
    size: int = values["batch_size"]
    return size * (world if values["batch_scope"] == "process" else 1)


def check_divisibility(values: Mapping[str, Any], variables: Mapping[str, str], threads: int = 1) -> None:
    """Raise OptionError if the batch cannot be cut into equal shares, or nodes cannot have equally many processes.

    A process's share is cut into ``threads`` parts. Options missing from ``values`` have their defaults.
    """
    all_values = {**defaults(), **values}
    world = processes(all_values, variables)
    if world % all_values["nodes"]:
        raise OptionError(
            f"{world} processes cannot be spread evenly over {all_values['nodes']} nodes",
            "choose --processes as a multiple of --nodes",
        )
    shares = world * threads * all_values["micro_batches"]
    if all_values["collective"] != "none" or shares == 1:
        return
    batch, parts = effective_batch(all_values, world), shares * all_values["accumulation"]
    if batch % parts:
        raise OptionError(
            f"a batch of {batch} cannot be cut into {parts} equal parts (processes or threads {world * threads}, "
            f"accumulation {all_values['accumulation']}, micro_batches {all_values['micro_batches']})",
            f"choose a --batch-size that is a multiple of {parts}",
        )
