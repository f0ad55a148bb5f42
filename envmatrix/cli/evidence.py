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

    session = shared.open_chosen_environment(arguments)
    evidence = session.evidence()
    claims, observed = session.environment.claims, read_evidence(evidence)
    contradictions = checks.contradictions(claims, observed)
    if arguments.json:
        common.print_json(
            {"environment": arguments.environment, "evidence": evidence, "contradictions": contradictions}
        )
    else:
        common.print_text("\n".join(_lines(evidence)))
        for claim in claims:
            allowed_text = " or ".join(map(str, claim.allowed))
            common.print_text(f"check {claim.path} = {allowed_text}: found {lookup(observed, claim.path)}")
        for sentence in contradictions:
            common.print_text(f"CONTRADICTED: {sentence}")
    return ExitCode.SOME_FAILED if contradictions else ExitCode.FINE


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
