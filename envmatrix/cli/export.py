"""The ``envmatrix export`` command."""

from __future__ import annotations

import argparse

from envmatrix.api import FORMS
from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, nonempty_path
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import script_forms


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_chosen(parser)
    parser.add_argument("--as", dest="form", choices=(*FORMS, *script_forms()), default="sh", help="default: sh")
    parser.add_argument(
        "--bundle",
        type=nonempty_path,
        metavar="DIR",
        help="copy the libraries there (for dockerfile: the folder to build)",
    )
    patched = "print a patch of this .env, environment.yml, Dockerfile or script instead"
    parser.add_argument("--patch", type=nonempty_path, metavar="FILE", help=patched)
    shared.add_output(parser, "FILE", "output file (default: standard output)")
    parser.examples(
        "envmatrix export tcmalloc",
        "envmatrix export tcmalloc --patch train.sbatch | patch train.sbatch",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print lines to paste that set up an environment."""
    from envmatrix.api.environments import export

    if arguments.patch and arguments.form != "sh":
        raise InputError("--as and --patch cannot be combined", remedy="leave one of them out")
    text = export(
        arguments.environment,
        form=arguments.form,
        engine=arguments.engine,
        matrix=arguments.matrix,
        run=arguments.of_run,
        results=arguments.results,
        bundle=arguments.bundle,
        patch=arguments.patch,
        progress=common.print_progress,
    )
    common.write_or_print(text, arguments.output)
    return 0
