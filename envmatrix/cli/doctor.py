"""The ``envmatrix doctor`` command."""

from __future__ import annotations

from dataclasses import asdict

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser

_SIGNS = {"good": "ok  ", "note": "note", "bad": "BAD "}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "--json")
    parser.examples("envmatrix doctor", "envmatrix doctor --json")


def run(arguments: Arguments) -> None:
    """Print the findings; a bad one does not change the exit code."""
    from envmatrix.api.machine_checks import examine

    findings = examine()
    lines = (
        f"{_SIGNS[finding.state]} {finding.subject}: {finding.found}"
        + (f"\n     -> {finding.remedy}" if finding.remedy else "")
        for finding in findings
    )
    console_io.print_answer(arguments, [asdict(finding) for finding in findings], "\n".join(lines))
