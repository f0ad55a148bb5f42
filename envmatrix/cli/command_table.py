"""The command line: the table of commands; the module of a command is loaded only on use."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Sequence

from envmatrix.cli.argument_parser import Parser, comma_remedy
from envmatrix.errors import ExitCode, InputError, suggestion
from envmatrix.version import __version__

#: Group -> command -> description, in the order of `envmatrix --help`.
GROUPS = {
    "run": {
        "init": "write a short, commented matrix.yaml for your own program",
        "check": "check matrix.yaml and report its errors",
        "plan": "show what a design would run, in which order",
        "bench": "run a design and report the speed-up of each environment",
        "tune": "find the best environment for your program within a budget, and confirm it",
        "resume": "continue a run that was stopped, killed or cut short",
        "exec": "run any command inside an environment",
    },
    "look": {
        "list": "list factors, environments, workloads, designs, runs, engines, launchers and reports",
        "report": "rebuild the report of a run, or print it",
        "explain": "say why an environment is faster or slower, in parts that add up",
        "compare": "compare two environments of a run, or two runs; use it as a gate for upgrades",
        "history": "show many runs, hosts and dates in one view, with change points",
        "figure": "draw a figure for a paper, as SVG or PDF",
        "evidence": "show what is really active inside an environment",
        "diff": "show what differs between two environments: packages, libraries, settings, machine",
        "doctor": "check this machine, read-only: what disturbs a benchmark, what is missing",
        "selftest": "measure how often two identical systems are called different",
    },
    "share": {
        "export": "print the lines that set up an environment elsewhere",
        "redact": "remove user folders, user names and host names from an older run",
        "pack": "pack a run into one archive, to repeat it elsewhere",
        "reproduce": "verify an archive, run its plan here, and compare the effects",
        "atlas": "collect runs of many machines in a folder, and show what holds on all of them",
        "mcp": "serve runs and their results to an agent (Model Context Protocol)",
        "docs": "print a page of the documentation of this version",
        "schema": "print the JSON Schema of matrix.yaml, for editors, or of run.json",
        "completion": "print the completion script of a shell: bash, zsh, fish or tcsh",
    },
    "build": {
        "lock": "resolve and pin the packages of images and libraries",
        "build": "build the environments of a design, or those you name",
        "definitions": "write a Dockerfile and an Apptainer definition for environments (a design, some, or all)",
        "context": "fetch everything that an image needs, to build it by hand",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_EXIT_CODES_TEXT = """\
exit codes: 0 fine, 2 bad input, 3 some trials failed, 4 nothing could run, 5 slower than allowed, 6 cannot say,
7 other work, 130 interrupted; `envmatrix docs gate` explains them
`envmatrix COMMAND --help` explains a command, with examples."""


def _top_level_parser() -> Parser:
    lines = [
        line
        for group, commands in GROUPS.items()
        for line in (f"{group}:", *(f"  {name:12} {text}" for name, text in commands.items()), "")
    ]
    parser = Parser(
        prog="envmatrix",
        description="How much faster does a PyTorch program get when only its environment changes?",
        epilog="\n".join([*lines, _EXIT_CODES_TEXT]),
        usage="envmatrix [--version] COMMAND [...]",
    )
    parser.add_argument("--version", action="version", version=f"envmatrix {__version__}")
    return parser


def command_parser(name: str) -> Parser:
    """Return the parser of one command, loading its module."""
    module = importlib.import_module(f"envmatrix.cli.{name}")
    text = f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}"
    parser = Parser(prog=f"envmatrix {name}", description=text if text.endswith("?") else f"{text}.")
    module.add_arguments(parser)
    parser.set_defaults(execute=module.run, whole_parser=whole_parser)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; for an unknown word, raise an InputError that suggests the nearest."""
    if not argv or argv[0].startswith("-"):
        if command := next((word for word in argv if word in COMMANDS), ""):
            words = list(argv)
            words.remove(command)
            remedy = shlex.join(["envmatrix", command, *words])
            raise InputError(f"{argv[0]} must come after the command", remedy=remedy)
        _top_level_parser().parse_args(argv or ["--help"])
        raise InputError(f"no command: {' '.join(argv)}", remedy="`envmatrix --help` lists the commands")
    if argv[0] not in COMMANDS:
        raise InputError(f"no command {argv[0]!r}", remedy=suggestion(argv[0], COMMANDS))
    return command_parser(argv[0]).parse_args(argv[1:])


def run_command(arguments: argparse.Namespace) -> int:
    """Run the parsed command."""
    try:
        return arguments.execute(arguments) or ExitCode.FINE
    except InputError as error:  # the unknown word may have been meant as an item of a list
        words = [word for _, items in arguments.spaced_lists for word in items[1:] if repr(word) in error.message]
        error.remedy = comma_remedy(arguments, words) or error.remedy
        raise


def whole_parser() -> Parser:
    """Return one parser with every command as a subparser, for completion scripts; loads all command modules."""
    top = _top_level_parser()
    commands = top.add_subparsers(parser_class=Parser)
    for name, text in COMMANDS.items():
        importlib.import_module(f"envmatrix.cli.{name}").add_arguments(commands.add_parser(name, help=text))
    return top
