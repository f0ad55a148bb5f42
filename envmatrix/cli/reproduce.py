"""``envmatrix reproduce``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.cli import answer, common, launching
from envmatrix.cli import arguments as shared
from envmatrix.cli.grammar import Parser, one_name, percentage, placed
from envmatrix.errors import ExitCode, first_code

if TYPE_CHECKING:
    from envmatrix.bundle.comparison import Reproduction
    from envmatrix.bundle.rerun import Opened


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="what `envmatrix pack` wrote")
    parser.add_argument("--check", action="store_true", help="only verify the archive and say what is in it")
    parser.add_argument(
        "run_name", nargs="?", type=one_name, metavar="RUN", help="compare with this run, begun from it earlier"
    )
    parser.formerly("--run", "the run as a word behind the archive: ARCHIVE RUN")
    parser.add_argument("--sha256", metavar="HEX", help="the digest that the archive must have")
    parser.add_argument("--signers", type=Path, metavar="FILE", help="allowed signers (ssh-keygen); others are refused")
    parser.add_argument(
        "--tolerance",
        type=percentage,
        default=0.05,
        metavar="PERCENT",
        help="effects this close agree (default: 5%%)",
    )
    parser.add_argument("--fail-undecided", action="store_true", help="exit code 6 if an effect is undecided")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="build images here, and measure with them even if their files differ from the packed run's",
    )
    parser.add_argument(
        "--program", type=placed, action="append", default=[], metavar="WORKLOAD=FOLDER",
        help="where this machine has the program of a workload that was not packed",
    )  # fmt: skip
    shared.add_results(parser)
    launching.add_launcher(parser)
    shared.add_answer(parser)
    parser.examples(
        "envmatrix reproduce run.tar.gz --check", "envmatrix reproduce run.tar.gz --signers allowed_signers --rebuild"
    )
    parser.exit_codes(
        "those of bench for the run made here; 3 also if an effect was not reproduced, 6 with --fail-undecided if",
        "one is undecided. If several apply: 130, 4, 7, 6, 3.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Verify, rebuild, run the plan again, and say which effects were found again."""
    from envmatrix.api import packs
    from envmatrix.bundle.manifest import summary_of

    opened = packs.open_archive(
        arguments.archive,
        sha256=arguments.sha256 or "",
        signers=arguments.signers,
        results=arguments.results,
        progress=common.say_to_stderr,
    )
    if arguments.check:
        if arguments.json:
            common.print_json({**summary_of(opened.manifest), "signed": opened.signed})
        return ExitCode.FINE
    found, code = _again(opened, arguments)
    code = first_code(found.gate(fail_undecided=arguments.fail_undecided), code)
    if arguments.json:
        common.print_json(found.to_json(code))
    else:
        common.print_text(describe(found))
    return code


def _again(opened: Opened, arguments: argparse.Namespace) -> tuple[Reproduction, ExitCode]:
    """Run the plan of a pack here, or take the run that was named, and compare."""
    from envmatrix.api import packs

    progress, results = common.say_to_stderr, arguments.results
    if arguments.run_name:
        found = packs.compare_again(opened, arguments.run_name, results, arguments.tolerance, progress)
        return found, packs.stored_code(arguments.run_name, results)
    experiment = packs.begin_packed(
        opened,
        results=results,
        launcher=arguments.launcher,
        asked=launching.given_options(arguments),
        rebuild=arguments.rebuild,
        programs=dict(arguments.program),
        vouched=bool(arguments.signers or arguments.sha256),
        progress=progress,
    )
    watch, ask = answer.watching(quiet=arguments.quiet)
    found, result = packs.carry_out_again(opened, arguments.archive, experiment, arguments.tolerance, watch, ask)
    common.say_to_stderr(f"{result.name}: {result.why}")
    return found, answer.end(result)


def describe(found: Reproduction) -> str:
    """Write the answer for people: what differs, then every effect with both intervals."""
    from envmatrix.system.printable import clean

    lines = [f"{found.first.name} (packed) and {found.second.name} (here)", ""]
    lines += ["what differs:" if found.differences else "nothing differs in machine, images and environments"]
    lines += [f"  {item}" for item in found.differences]
    width = max((len(item.environment) for item in found.effects), default=0)
    lines += ["", f"{'effect':{width}}  {'packed':24}  {'here':24}  answer"]
    for item in found.effects:
        then, now = _interval(item.first), _interval(item.second)
        answer = f"{item.answer}: {item.unsure}" if item.unsure else item.answer
        lines.append(f"{item.environment:{width}}  {then:24}  {now:24}  {answer}")
    lines += ["", f"reproduced: the two effects surely differ by less than {found.tolerance:.0%}; "
              "not reproduced: they surely differ; undecided: neither is sure", *found.cautions]  # fmt: skip
    return "\n".join(map(clean, lines))  # a pack may come from anybody


def _interval(effect: object) -> str:
    from envmatrix.stats.effects import Effect

    if not isinstance(effect, Effect) or effect.ratio is None:
        return "not measured"
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.3f} (too few blocks)"
    return f"{effect.ratio:.3f} [{effect.low:.3f}, {effect.high:.3f}]"
