"""The workload options as command-line arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from bench import options
from bench.errors import BenchError
from bench.options import OptionError, Options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add one ``--option VALUE`` per workload option to ``parser``, grouped as in ``options.json``."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, option in options.listed().items():
        if option["group"] not in groups:
            groups[option["group"]] = parser.add_argument_group(f"{option['group']} options")
        flags = dict.fromkeys("--" + name.replace("_", mark) for mark in "-_")
        choices = ",".join(map(str, option.get("choices", ())))
        metavar = "{" + choices + "}" if choices else option["type"].upper()
        default = "none" if option["default"] is None else json.dumps(option["default"]).strip('"')
        text = f"{option['help']} (default: {default})".replace("%", "%%")
        groups[option["group"]].add_argument(*flags, dest=name, default=argparse.SUPPRESS, metavar=metavar, help=text)


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
    return values
