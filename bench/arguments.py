"""The workload options as arguments of a command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import cast

from bench import options
from bench.errors import BenchError
from bench.options import Entry, OptionError, Options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` one ``--option VALUE`` per workload option, grouped as in ``options.json``."""
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
    shown = "none" if option["default"] is None else json.dumps(option["default"]).strip('"')
    return f"{option['help']} (default: {shown})".replace("%", "%%")


def from_texts(texts: Mapping[str, str]) -> Options:
    """Turn ``{name: text}`` into all options, with defaults filled in; BenchError names everything that is wrong."""
    listed, values, wrong = options.listed(), options.defaults(), []
    for name, text in texts.items():
        try:
            values[name] = options.convert(listed[name], text)
        except OptionError as error:
            wrong.append(f"--{name.replace('_', '-')} {error}")
    wrong = wrong or [broken.message for broken in options.broken_rules(values)]
    if wrong:
        raise BenchError("; ".join(wrong))
    return cast("Options", values)
