"""``envmatrix bench``."""

from __future__ import annotations

import argparse
import sys

from envmatrix.commands import answer, common, launching
from envmatrix.commands import arguments as shared
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_design(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the run (default: design and time)")
    shared.add_results(parser)
    parser.add_argument(
        "--host-names", action="store_true", help="call hosts what they are called (default: node-1, node-2, ...)"
    )
    launching.add_launcher(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="with a launcher that submits scripts: print the first, submit nothing"
    )
    shared.add_answer(parser)
    parser.examples(
        "envmatrix bench quick --budget 10m",
        "envmatrix bench --environments tcmalloc,intel-omp --engine docker --name containers",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare, run and report one design."""
    from envmatrix.api import runs

    scripts = runs.scripts_of(arguments.launcher) if arguments.dry_run else None
    experiment = runs.begin(
        arguments.design,
        shared.overrides(arguments),
        engines=arguments.engine or (),
        matrix=arguments.matrix,
        results=arguments.results,
        name=arguments.name,
        launcher=arguments.launcher,
        asked=launching.given_options(arguments),
        command=tuple(sys.argv[1:]),
        host_names=arguments.host_names,
        say=common.say_to_stderr,
    )
    if scripts:
        common.print_text("\n".join(scripts(experiment)))
        return 0
    return answer.carry_out(experiment, arguments)
