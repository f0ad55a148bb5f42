"""The ``envmatrix evidence`` command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare_flag
from envmatrix.cli.unused_stdin import check_unused_input
from envmatrix.errors import ExitCode

if TYPE_CHECKING:
    from envmatrix.evidence.checks import Claim
    from envmatrix.evidence.evidence_models import Evidence


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add_chosen(parser)
    shared_options.add_image_and_launcher(parser)
    declare_flag(parser, "--all", "print all evidence below the checks")
    shared_options.add(parser, "--json")
    parser.accept_command("your own program, whose evidence you want (default: a process that does nothing else)")
    parser.examples(
        "envmatrix evidence tcmalloc --engine docker --json",
        "envmatrix evidence tcmalloc --launcher slurm -- python train.py --epochs 1",
    )


def run(arguments: Arguments) -> int:
    """Start a process or your program in the environment, print its evidence, and compare it with the checks."""
    from envmatrix.evidence import checks
    from envmatrix.evidence.trial_record import read_evidence
    from envmatrix.trials.environment_for_commands import EVIDENCE_LIMIT_S, PROGRAM_LIMIT_S

    command = tuple(arguments.command)
    with check_unused_input(command):
        ended = shared_options.run_elsewhere(arguments, PROGRAM_LIMIT_S if command else EVIDENCE_LIMIT_S)
        session = ended.session if ended else shared_options.open_chosen_environment(arguments)
        evidence = ended.evidence_or_raise() if ended else session.evidence(command)
    claims, observed = session.environment.claims, read_evidence(evidence)
    verifiable = [claim for claim in claims if not checks.unverifiable_reason(claim, observed)]
    contradictions = checks.contradictions(verifiable, observed)
    lines = [*_check_lines(arguments.environment, claims, observed)]
    lines += ["", *_lines(evidence)] if arguments.all else ["all evidence: add --all"]
    document = {"environment": arguments.environment, "evidence": evidence, "contradictions": contradictions}
    console_io.print_answer(arguments, document, "\n".join(lines))
    return ExitCode.SOME_FAILED if contradictions else ExitCode.FINE


def _check_lines(environment: str, claims: Sequence[Claim], observed: Evidence) -> Iterator[str]:
    """Yield how many checks of the environment hold, then one line for each."""
    from envmatrix.evidence.checks import unverifiable_reason
    from envmatrix.evidence.dotted_paths import lookup

    failed = {claim.path: text for claim in claims if (text := claim.contradiction(observed))}
    if not claims:
        yield f"{environment}: no checks"
        return
    yield f"{environment}: {len(claims) - len(failed)} of {len(claims)} checks hold"
    for claim in claims:
        allowed_text = " or ".join(map(str, claim.allowed))
        if why := unverifiable_reason(claim, observed):
            yield f"  not verified  {claim.path} = {allowed_text}: {why}"
            continue
        found_text = f", found {lookup(observed, claim.path)}" if claim.path in failed else ""
        yield f"  {'FAILED' if claim.path in failed else 'ok    '}  {claim.path} = {allowed_text}{found_text}"


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
