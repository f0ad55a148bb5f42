"""The workload options: read from ``options.json``, the one list that the host reads too."""

import argparse
import difflib
import json
import math
import os

from bench.errors import BenchError

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "options.json")
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def load():
    """Return the parsed ``options.json`` (its format is in docs/record.md)."""
    with open(_FILE, encoding="utf-8") as file:
        return json.load(file)


def defaults():
    """Return every option with its default value."""
    return {option["name"]: option["default"] for option in load()["options"]}


def add_arguments(parser):
    """Give ``parser`` one ``--option VALUE`` per workload option, grouped as in ``options.json``."""
    groups = {}
    for option in load()["options"]:
        group = groups.get(option["group"])
        if group is None:
            group = groups[option["group"]] = parser.add_argument_group(f"{option['group']} options")
        names = dict.fromkeys("--" + option["name"].replace("_", mark) for mark in "-_")
        group.add_argument(
            *names,
            dest=option["name"],
            default=argparse.SUPPRESS,
            metavar=_metavar(option),
            help=_help(option),
        )


def _metavar(option):
    choices = option.get("choices")
    return "{" + ",".join(map(str, choices)) + "}" if choices else option["type"].upper()


def _help(option):
    shown = "none" if option["default"] is None else json.dumps(option["default"]).strip('"')
    return f"{option['help']} (default: {shown})".replace("%", "%%")


def from_texts(texts):
    """Turn ``{name: text}`` from a command line into all options, checked, with defaults filled in."""
    listed = {option["name"]: option for option in load()["options"]}
    values = defaults()
    for name, text in texts.items():
        values[name] = _parse(listed[name], text)
    check(values)
    return values


def _parse(option, text):
    if option.get("optional") and text.lower() in ("none", "null"):
        return None
    try:
        return _PARSERS[option["type"]](text.strip())
    except (ValueError, KeyError):
        raise BenchError(f"--{_dashed(option)} wants {option['type']}, not {text!r}") from None


def _dashed(option):
    return option["name"].replace("_", "-")


def _integers(text):
    return [int(part) for part in text.split(",")] if text else []


_PARSERS = {
    "int": int,
    "float": float,
    "bool": lambda text: _WORDS[text.lower()],
    "str": str,
    "list-of-int": _integers,
}


def check(values):
    """Raise BenchError for the first value out of its range and the first rule that is broken."""
    listed = load()
    for option in listed["options"]:
        _check_one(option, values[option["name"]])
    for rule in listed["rules"]:
        if all(_holds(test, values[name]) for name, test in rule["when"].items()):
            for name, allowed in rule["require"].items():
                if values[name] not in allowed:
                    raise BenchError(f"{rule['message']} (here {name} is {json.dumps(values[name])})")


def _check_one(option, value):
    if value is None:
        return
    name, choices = "--" + _dashed(option), option.get("choices")
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(map(str, choices))}"
        raise BenchError(f"{name} cannot be {value!r}: {hint}")
    for number in value if isinstance(value, list) else [value]:
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        if not math.isfinite(number):
            raise BenchError(f"{name} wants a finite number")
        if number < option.get("minimum", number):
            raise BenchError(f"{name} must be at least {option['minimum']}, not {number}")
        if number > option.get("maximum", number):
            raise BenchError(f"{name} must be at most {option['maximum']}, not {number}")


def _holds(test, value):
    if "above" in test:
        return value is not None and value > test["above"]
    if "not" in test:
        return value not in test["not"]
    return value in test["is"]


def requirements(values):
    """Yield (what needs it, requirement) for every chosen value that states needs in ``options.json``."""
    for option in load()["options"]:
        value = values[option["name"]]
        needs = option.get("needs", {})
        for key in (json.dumps(value).strip('"'), "*"):
            if key in needs and (key != "*" or value != option["default"]):
                yield f"{option['name']}: {json.dumps(value)}", needs[key]
