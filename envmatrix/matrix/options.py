"""Options of the built-in workloads: checked against the benchmark's own list, read as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from envmatrix.errors import suggestion
from envmatrix.project import bench_options

_TRUE = {"true", "yes", "on"}
_FALSE = {"false", "no", "off"}


class UnknownOptionError(KeyError):
    """The benchmark has no option of this name."""


def names() -> list[str]:
    """Return the names of all options."""
    return list(_table())


def _table() -> Mapping[str, Mapping[str, Any]]:
    return {option["name"]: option for option in bench_options()["options"]}


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    msg = f"must be true or false, not {text!r}"
    raise ValueError(msg)


def _number(kind: Callable[[str], Any], word: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            msg = f"must be {word}, not {text!r}"
            raise ValueError(msg) from None

    return read


_READERS: Mapping[str, Callable[[str], Any]] = {
    "int": _number(int, "a whole number"),
    "float": _number(float, "a number"),
    "bool": _boolean,
    "str": str,
}


def nodes_of(options: Mapping[str, Any]) -> int:
    """Return how many machines a workload with these options is spread over; 1 for a program of the user's own."""
    return int(options.get("nodes") or 1)


def convert(name: str, value: Any) -> Any:
    """Turn the text of matrix.yaml into the option's type; ValueError says what it must be."""
    table = _table()
    if name not in table:
        raise UnknownOptionError(name)
    option = table[name]
    if option["type"] == "list-of-int":
        items = value if isinstance(value, list) else str(value).split(",")
        return [_READERS["int"](str(item).strip()) for item in items]
    if value is None and option.get("optional"):
        return None
    if not isinstance(value, str):
        msg = f"must be one {option['type']}"
        raise ValueError(msg)
    found = _READERS[option["type"]](value)
    choices = option.get("choices")
    if choices and found not in choices:
        msg = f"cannot be {value!r}; {suggestion(value, map(str, choices))}"
        raise ValueError(msg)
    _check_range(option, found)
    return found


def _check_range(option: Mapping[str, Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    low, high = option.get("minimum"), option.get("maximum")
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        bounds = " and ".join(
            f"{word} {bound}" for word, bound in (("at least", low), ("at most", high)) if bound is not None
        )
        msg = f"must be {bounds or 'finite'}, not {value}"
        raise ValueError(msg)


def impossible(options: Mapping[str, Any]) -> str | None:
    """Say which rule of the benchmark a combination of options breaks, or None when it is possible."""
    body = bench_options()
    values = {option["name"]: option["default"] for option in body["options"]} | dict(options)
    for rule in body.get("rules", []):
        if not all(_holds(test, values[name]) for name, test in rule["when"].items()):
            continue
        broken = next((name for name, allowed in rule["require"].items() if values[name] not in allowed), None)
        if broken:
            return f"{rule['message']} (here {broken} is {values[broken]})"
    return None


def _holds(test: Mapping[str, Any], value: Any) -> bool:
    if "above" in test:
        return value is not None and bool(value > test["above"])
    return value not in test["not"] if "not" in test else value in test["is"]


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Write options as arguments of ``python -m bench run``."""
    argv = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (list, tuple)):
            text = ",".join(map(str, value))
        else:
            text = str(value)
        argv.append(f"{flag}={text}")
    return argv
