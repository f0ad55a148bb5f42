"""The command line: a table of commands, each a module of ``envmatrix.commands`` loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import NoReturn

from envmatrix import __version__
from envmatrix.errors import InputError, suggestion

#: Command -> what it does, in the order of `envmatrix --help`.
COMMANDS = {
    "init": "write a short, commented matrix.yaml for your own program",
    "check": "check matrix.yaml and say what is wrong with it",
    "list": "list factors, environments, workloads and designs",
    "plan": "show what a design would run, in which order",
    "lock": "resolve and pin what images and libraries are made of",
    "build": "build the environments of a design, or those named",
    "definitions": "write a Dockerfile and an Apptainer definition for every named environment",
    "context": "fetch all that an image is made of, to build it by hand",
    "bench": "run a design and say what each environment gains",
    "resume": "go on with a run that was stopped, killed or cut short",
    "report": "make the report of a run again, or show it here",
    "compare": "compare two environments of a run, or two runs; a gate for upgrades",
    "history": "show many runs, hosts and dates in one view, with change points",
    "figure": "draw a figure for a paper, as SVG",
    "evidence": "show what is really active inside an environment",
    "exec": "run any command inside an environment",
    "export": "print the lines that set up an environment elsewhere",
    "pack": "make one archive of a run, to repeat it elsewhere",
    "reproduce": "verify an archive, run its plan here, and say which effects are found again",
    "doctor": "look at this machine, read-only: what disturbs a benchmark, what is missing",
    "selftest": "how often are two identical systems called different?",
    "schema": "print the JSON Schema of matrix.yaml, for editors",
    "completion": "print a shell's completion script",
}


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are InputErrors, so that one place prints them."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, remedy=f"`{self.prog} --help` lists what it takes")


def _top() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:12} {text}" for name, text in COMMANDS.items())
    parser = _Parser(
        prog="envmatrix",
        description="How much faster does a PyTorch program get when only its environment changes?",
        epilog=f"commands:\n{lines}\n\nexit codes: 0 fine, 2 bad input, 3 some trials failed, 4 nothing could run, "
        "5 slower than allowed, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="envmatrix [--version] COMMAND [...]",
    )
    parser.add_argument("--version", action="version", version=f"envmatrix {__version__}")
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command, loading its module."""
    module = importlib.import_module(f"envmatrix.commands.{name}")
    parser = _Parser(prog=f"envmatrix {name}", description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.")
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; an unknown word is an InputError with the nearest known one."""
    top = _top()
    if not argv or argv[0].startswith("-"):
        top.parse_args(argv or ["--help"])
        raise InputError(f"unknown option {argv[0]!r}", remedy="`envmatrix --help` lists the commands")
    name, rest = argv[0], list(argv[1:])
    if name not in COMMANDS:
        raise InputError(f"no command {name!r}", remedy=suggestion(name, COMMANDS))
    return command_parser(name).parse_args(rest)


def run_command(arguments: argparse.Namespace) -> int:
    """Run the command that was parsed."""
    code: int = arguments.run(arguments)
    return code


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser with every command as a subparser (for completion scripts; loads all command modules)."""
    top = _top()
    commands = top.add_subparsers(parser_class=_Parser)
    for name, text in COMMANDS.items():
        importlib.import_module(f"envmatrix.commands.{name}").add_arguments(commands.add_parser(name, help=text))
    return top
