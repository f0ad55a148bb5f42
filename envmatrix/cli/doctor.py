"""The ``envmatrix doctor`` command."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser

_SIGNS = {"good": "ok  ", "note": "note", "bad": "BAD "}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_json(parser)
    parser.examples("envmatrix doctor", "envmatrix doctor --json")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; a bad one does not change the exit code."""
    from envmatrix.launchers.doctor_checks import examine

    findings = examine()
    if arguments.json:
        common.print_json([asdict(finding) for finding in findings])
        return 0
    for finding in findings:
        common.print_text(f"{_SIGNS[finding.state]} {finding.subject}: {finding.found}")
        if finding.remedy:
            common.print_text(f"     -> {finding.remedy}")
    return 0
