"""The ``envmatrix redact`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix redact reference-default")


def run(arguments: argparse.Namespace) -> int:
    """Remove users, their folders and host names from a run that is to be published."""
    from envmatrix.api.packs import redact_run

    result, changed = redact_run(arguments.run_name, results=arguments.results, progress=common.print_progress)
    if arguments.json:
        common.print_json({"run": result.folder.name, "changed": list(changed)})
    else:
        common.print_text(f"{result.folder}: {', '.join(changed) or 'nothing'} changed; reports rebuilt")
        common.print_text("keep names.json, logs and slurm/ to yourself; `envmatrix pack` leaves them out")
    return 0
