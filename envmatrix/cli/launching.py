"""Launchers on the command line: their names, and the options that each of them declares."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from envmatrix.cli.grammar import Arguments, Parser, declare, one_name
from envmatrix.errors import InputError
from envmatrix.launchers.base import Option
from envmatrix.launchers.catalog import DEFAULT, LAUNCHERS, check_options, usable_kinds
from envmatrix.units import parse_duration

if TYPE_CHECKING:
    from envmatrix.api.program.place import ProgramPlace
    from envmatrix.results.run import LauncherOptions

_PREFIX = "launcher_option_"


def add_launcher(parser: Parser) -> None:
    """Add --launcher and the options of every launcher."""
    text = f"where trials run: {', '.join(LAUNCHERS.names())} (default: {DEFAULT})"
    declare(parser, "--launcher", "NAME", text, one_name, default=DEFAULT)
    add_launcher_options(parser)


def add_launcher_options(parser: Parser) -> None:
    """Add the options of every launcher; launchers that declare the same option share it."""
    added: dict[str, Option] = {}
    for kind in usable_kinds():
        mark = " (experimental)" if getattr(kind, "experimental", False) else ""
        group = parser.add_argument_group(f"with --launcher {kind.name}{mark}") if kind.options else None
        for option in kind.options:
            is_new = option.name not in added
            declared = added.setdefault(option.name, option)
            if declared.takes != option.takes or (is_new and f"--{option.name}" in parser.option_names):
                raise InputError(
                    f"launcher {kind.name} defines --{option.name}, which already has another meaning here",
                    remedy="uninstall the launcher's package; its authors have to rename the option",
                )
            if is_new and group:
                _add_option(parser, group, option)


def _add_option(parser: Parser, group: argparse._ArgumentGroup, option: Option) -> None:
    word, dest, text = f"--{option.name}", _PREFIX + option.name, option.help.replace("%", "%%")
    if option.takes == "names":
        parser.add_list(word, option.metavar, f"{text}: a,b, or repeat the option", dest=dest, target=group)
    elif option.takes == "duration":
        declare(group, word, option.metavar, text, parse_duration, dest=dest)
    else:
        declare(group, word, option.metavar, text, dest=dest)


def read_launcher_options(arguments: Arguments) -> LauncherOptions:
    """Return the given launcher options."""
    values_by_name = {
        key.removeprefix(_PREFIX): value for key, value in vars(arguments).items() if key.startswith(_PREFIX)
    }
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values_by_name.items() if v is not None}


def read_process_place(arguments: Arguments) -> ProgramPlace:
    """Return where one process runs. On this machine, ``--gpus`` names the GPUs of its container: all, or 0,1."""
    from envmatrix.api.program.place import ProgramPlace

    options, image = dict(read_launcher_options(arguments)), arguments.image or ""
    if arguments.launcher != DEFAULT:
        return ProgramPlace("", image, ("all",) if options.get("gpus") else (), arguments.launcher, options)
    gpus = options.pop("gpus", "")
    check_options(LAUNCHERS.make(DEFAULT), options)
    return ProgramPlace("", image, tuple(word.strip() for word in str(gpus).split(",") if word))
