"""The ``envmatrix redact`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "run", "--results", "--json")
    parser.examples("envmatrix redact reference-default")


def run(arguments: Arguments) -> None:
    """Remove users, their folders and host names from a run that is to be published."""
    from envmatrix.api.reproduction_packs import redact_run_in_place

    result, changed = console_io.call(redact_run_in_place, arguments)
    text = (
        f"{result.folder}: {', '.join(changed) or 'nothing'} changed; reports rebuilt\n"
        "keep names.json, logs and slurm/ to yourself; `envmatrix pack` leaves them out"
    )
    console_io.print_answer(arguments, {"run": result.folder.name, "changed": list(changed)}, text)
