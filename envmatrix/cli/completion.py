"""The ``envmatrix completion`` command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from envmatrix.cli import console_io
from envmatrix.cli.argument_parser import Parser, declare

SHELLS = ("bash", "zsh", "fish", "tcsh")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "shell", "SHELL", f"the shell: {', '.join(SHELLS)}", choices=SHELLS)
    parser.examples('eval "$(envmatrix completion bash)"', "envmatrix completion fish | source")


def run(arguments: argparse.Namespace) -> None:
    """Print the completion script; `eval "$(envmatrix completion bash)"` activates it."""
    import shtab

    parser: Parser = arguments.whole_parser()
    for action in _all_actions(parser):
        if action.type is Path:
            action.complete = shtab.DIR if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    console_io.print_text(shtab.complete(parser, arguments.shell))


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _all_actions(command)
