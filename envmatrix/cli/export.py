"""The ``envmatrix export`` command."""

from __future__ import annotations

from envmatrix.api import FORMS
from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_path
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import script_forms


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add_chosen(parser)
    parser.add_argument("--as", dest="form", choices=(*FORMS, *script_forms()), default="sh", help="default: sh")
    declare(parser, "--bundle", "DIR", "copy the libraries there (for dockerfile: the folder to build)", nonempty_path)
    patched = "print a patch of this .env, environment.yml, Dockerfile or script instead"
    declare(parser, "--patch", "FILE", patched, nonempty_path)
    shared_options.add_output(parser, "FILE", "output file (default: standard output)")
    parser.examples(
        "envmatrix export tcmalloc",
        "envmatrix export tcmalloc --patch train.sbatch | patch train.sbatch",
    )


def run(arguments: Arguments) -> None:
    """Print lines to paste that set up an environment."""
    from envmatrix.api.environment_exec_and_export import export

    if arguments.patch and arguments.form != "sh":
        raise InputError("--as and --patch cannot be combined", remedy="leave one of them out")
    console_io.write_or_print(console_io.call(export, arguments), arguments.output)
