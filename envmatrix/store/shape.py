"""What run.json and a line of trials.jsonl must look like, so that the rest can rely on it.

A file can be edited, cut, or written by another program. Each check raises TypeError with the path of what is wrong.
Keys that are absent are not looked at: whoever makes the value knows which ones it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any, str], None]
_LARGEST = 2**53


def anything(_value: Any, _where: str) -> None:
    """Accept every value."""


def text(value: Any, where: str) -> None:
    """Accept text."""
    if not isinstance(value, str):
        raise TypeError(f"{where} is no text")


def integer(value: Any, where: str) -> None:
    """Accept an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{where} is no whole number")


def quantity(value: Any, where: str) -> None:
    """Accept a number from 0 up, of a size that can be computed with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
        raise TypeError(f"{where} is no usable number")


def count(value: Any, where: str) -> None:
    """Accept a whole number from 0 up."""
    integer(value, where)
    quantity(value, where)


def optional(shape: Shape) -> Shape:
    """Accept null too."""
    return lambda value, where: None if value is None else shape(value, where)


def items(shape: Shape) -> Shape:
    """Accept a list whose items have the shape."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{where} is no list")
        for index, item in enumerate(value):
            shape(item, f"{where}[{index}]")

    return check


def values(shape: Shape) -> Shape:
    """Accept an object all of whose values have the shape."""

    def check(value: Any, where: str) -> None:
        _check_object(value, where)
        for key, item in value.items():
            shape(item, f"{where}.{key}")

    return check


def keys(shapes: Mapping[str, Shape]) -> Shape:
    """Accept an object whose values have the shapes named by their keys."""

    def check(value: Any, where: str) -> None:
        _check_object(value, where)
        for key, shape in shapes.items():
            if key in value:
                shape(value[key], f"{where}.{key}" if where else key)

    return check


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is no object")


_ARM = keys({**dict.fromkeys(("name", "environment", "runs", "workload", "engine"), text), "reference": optional(text)})
_PLAN = keys(
    {
        "design": text,
        "arms": items(_ARM),
        **dict.fromkeys(("min_blocks", "max_blocks"), count),
        **dict.fromkeys(("target", "margin", "budget_s"), quantity),
        "seed": integer,
    }
)
_ENVIRONMENT = keys(
    {
        "levels": optional(values(text)),
        "own_levels": optional(values(text)),
        "variables": optional(values(optional(text))),
        "preload": optional(items(anything)),
    }
)
_DESIGN = keys({"ladder": optional(items(text)), "published": optional(values(anything))})
_WORKLOAD = keys({"command": optional(items(text)), "options": optional(values(anything))})

#: run.json
RUN = keys(
    {
        **dict.fromkeys(("name", "created", "matrix_digest", "bench_digest", "launcher", "matrix_text"), text),
        "plan": _PLAN,
        **dict.fromkeys(("host", "versions"), values(anything)),
        "environments": values(_ENVIRONMENT),
        "workloads": values(_WORKLOAD),
        "design": _DESIGN,
        "images": values(values(anything)),
        "skipped": values(text),
        "command": items(text),
    }
)
#: A line of trials.jsonl. What the numbers are is looked at where they are used.
TRIAL = keys(
    {
        **dict.fromkeys(("trial", "environment", "workload", "engine", "outcome", "reason", "node"), text),
        "record": optional(values(anything)),
    }
)
