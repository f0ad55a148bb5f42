"""The ``envmatrix build`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name
from envmatrix.errors import ExitCode


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    text = "a design, or environments; design:NAME if an environment has the same name (default: default)"
    declare(parser, "names", "NAME", text, nonempty_name, nargs="*")
    parser.declare_remedies({"--design": "write the design as a separate word: `envmatrix build DESIGN`"})
    shared_options.add(parser, "--matrix")
    shared_options.add_engine(parser)
    parser.examples("envmatrix build quick", "envmatrix build tcmalloc intel-omp --engine apptainer")


def run(arguments: Arguments) -> int:
    """Build the missing images and print the references of all."""
    from envmatrix.api.locks_and_images import build

    built = console_io.call(build, arguments)
    for line in built.starts:
        console_io.print_text(line)
    for image, reference in built.ready.items():
        console_io.print_text(f"{image}@{built.engine}: {reference}")
    for environment, reason in built.missing.items():
        console_io.print_progress(f"not built: {environment}@{built.engine}: {reason}")
    if not (built.ready or built.starts):
        return ExitCode.NOTHING_RAN
    return ExitCode.SOME_FAILED if built.missing else ExitCode.FINE
