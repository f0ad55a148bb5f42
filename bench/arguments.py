"""The workload options as command-line arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import cast

from bench import options
from bench.errors import BenchError
from bench.options import Entry, OptionError, Options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add one ``--option VALUE`` per workload option to ``parser``, grouped as in ``options.json``."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, option in options.listed().items():
        group = groups.get(option["group"])
        if group is None:
            group = groups[option["group"]] = parser.add_argument_group(f"{option['group']} options")
        group.add_argument(
            *dict.fromkeys("--" + name.replace("_", mark) for mark in "-_"),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=_metavar(option),
            help=_help(option),
        )


def _metavar(option: Entry) -> str:
    choices = option.get("choices")
    return "{" + ",".join(map(str, choices)) + "}" if choices else str(option["type"]).upper()


def _help(option: Entry) -> str:
    default_text = "none" if option["default"] is None else json.dumps(option["default"]).strip('"')
    return f"{option['help']} (default: {default_text})".replace("%", "%%")


def from_texts(texts: Mapping[str, str]) -> Options:
    """Convert ``{name: text}`` to all options, with defaults. Raises BenchError with every problem found."""
    option_entries, values, problems = options.listed(), options.defaults(), []
    for name, text in texts.items():
        try:
            values[name] = options.convert(option_entries[name], text)
        except OptionError as error:
            problems.append(f"--{name.replace('_', '-')} {error}")
    problems = problems or [broken.message for broken in options.broken_rules(values)]
    if problems:
        raise BenchError("; ".join(problems))
    return cast("Options", values)
