"""``envmatrix evidence``."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser
from envmatrix.errors import ExitCode


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_chosen(parser)
    shared.add_json(parser)
    parser.examples("envmatrix evidence intel-omp", "envmatrix evidence tcmalloc --engine docker --json")


def run(arguments: argparse.Namespace) -> int:
    """Start one process in the environment, print what it read back, and check the claims against it."""
    from envmatrix.evidence import checks
    from envmatrix.evidence.paths import lookup
    from envmatrix.evidence.record import read_evidence

    session = shared.chosen(arguments)
    evidence = session.evidence()
    promised, read = session.environment.claims, read_evidence(evidence)
    wrong = checks.contradictions(promised, read)
    if arguments.json:
        common.print_json({"environment": arguments.environment, "evidence": evidence, "contradictions": wrong})
    else:
        common.print_text("\n".join(_lines(evidence)))
        for claim in promised:
            allowed = " or ".join(map(str, claim.allowed))
            common.print_text(f"claim {claim.path} = {allowed}: found {lookup(read, claim.path)}")
        for sentence in wrong:
            common.print_text(f"CONTRADICTED: {sentence}")
    return ExitCode.SOME_FAILED if wrong else ExitCode.FINE


def _lines(body: object, indent: int = 0) -> list[str]:
    if not isinstance(body, dict):
        return [f"{'  ' * indent}{body}"]
    lines = []
    for key, value in body.items():
        if isinstance(value, dict) and value:
            lines += [f"{'  ' * indent}{key}:", *_lines(value, indent + 1)]
        else:
            lines.append(f"{'  ' * indent}{key}: {'' if value in (None, {}, []) else value}".rstrip())
    return lines
