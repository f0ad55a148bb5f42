"""The ``envmatrix reproduce`` command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.cli import answer, common, launching
from envmatrix.cli import arguments as shared
from envmatrix.cli.grammar import Parser, name_and_folder, one_name, percentage
from envmatrix.errors import ExitCode, first_code

if TYPE_CHECKING:
    from envmatrix.runner.pack_rerun import OpenedPack
    from envmatrix.runner.reproduction import Reproduction


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="an archive that `envmatrix pack` wrote")
    parser.add_argument("--check", action="store_true", help="only verify the archive and list its contents")
    parser.add_argument(
        "run_name",
        nargs="?",
        type=one_name,
        metavar="RUN",
        help="compare with this run, which was started from the archive earlier",
    )
    parser.declare_renamed("--run", "the run as a word after the archive: ARCHIVE RUN")
    parser.add_argument("--sha256", metavar="HEX", help="sha256 that the archive must have")
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="file of allowed signers (ssh-keygen); refuse others"
    )
    parser.add_argument(
        "--tolerance",
        type=percentage,
        default=0.05,
        metavar="PERCENT",
        help="call effects reproduced within this (default: 5%%)",
    )
    parser.add_argument("--fail-undecided", action="store_true", help="exit code 6 if an effect is undecided")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="build images here, and measure even if their files differ from the packed run's",
    )
    parser.add_argument(
        "--program",
        type=name_and_folder,
        action="append",
        default=[],
        metavar="WORKLOAD=FOLDER",
        help="folder of a workload's program on this machine, if it was not packed",
    )
    shared.add_results(parser)
    launching.add_launcher(parser)
    shared.add_display_options(parser)
    parser.examples(
        "envmatrix reproduce run.tar.gz --check", "envmatrix reproduce run.tar.gz --signers allowed_signers --rebuild"
    )
    parser.exit_codes(
        "those of bench for the new run; 3 also if an effect was not reproduced, 6 with --fail-undecided if",
        "one is undecided. If several apply: 130, 4, 7, 6, 3.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Verify and rebuild a packed run, run its plan again, and print which effects were reproduced."""
    from envmatrix.api import packs
    from envmatrix.runner.pack_manifest import manifest_summary

    opened = packs.open_archive(
        arguments.archive,
        sha256=arguments.sha256 or "",
        signers=arguments.signers,
        results=arguments.results,
        progress=common.print_progress,
    )
    if arguments.check:
        if arguments.json:
            common.print_json({**manifest_summary(opened.manifest), "signed": opened.signed})
        return ExitCode.FINE
    reproduction, code = _rerun_or_compare(opened, arguments)
    code = first_code(reproduction.gate(fail_undecided=arguments.fail_undecided), code)
    if arguments.json:
        common.print_json(reproduction.to_json(code))
    else:
        common.print_text(describe_reproduction(reproduction))
    return code


def _rerun_or_compare(opened: OpenedPack, arguments: argparse.Namespace) -> tuple[Reproduction, ExitCode]:
    """Run the plan of a pack here, or take the named run, and compare."""
    from envmatrix.api import packs

    progress, results = common.print_progress, arguments.results
    if arguments.run_name:
        reproduction = packs.compare_again(opened, arguments.run_name, results, arguments.tolerance, progress)
        return reproduction, packs.stored_exit_code(arguments.run_name, results)
    experiment = packs.begin_reproduction(
        opened,
        shared.read_new_run(arguments, launching.read_launcher_options(arguments)),
        rebuild=arguments.rebuild,
        programs=dict(arguments.program),
        vouched=bool(arguments.signers or arguments.sha256),
    )
    watch, ask = answer.progress_watch(quiet=arguments.quiet)
    reproduction, result = packs.finish_reproduction(
        opened, arguments.archive, experiment, arguments.tolerance, watch, ask
    )
    common.print_progress(f"{result.name}: {result.why}")
    return reproduction, answer.explain_exit(result)


def describe_reproduction(reproduction: Reproduction) -> str:
    """Return the result as text: the differences, then every effect with both intervals."""
    from envmatrix.system.printable import printable_text

    lines = [f"{reproduction.first.name} (packed) and {reproduction.second.name} (here)", ""]
    lines += ["what differs:" if reproduction.differences else "machine, images and environments are the same"]
    lines += [f"  {item}" for item in reproduction.differences]
    width = max((len(item.environment) for item in reproduction.effects), default=0)
    lines += ["", f"{'effect':{width}}  {'packed':24}  {'here':24}  answer"]
    for item in reproduction.effects:
        packed_interval, new_interval = _interval_text(item.first), _interval_text(item.second)
        answer = f"{item.answer}: {item.unsure}" if item.unsure else item.answer
        lines.append(f"{item.environment:{width}}  {packed_interval:24}  {new_interval:24}  {answer}")
    lines += [
        "",
        f"reproduced: the two effects differ by less than {reproduction.tolerance:.0%}; not reproduced: "
        "they differ significantly; undecided: neither is certain",
        *reproduction.cautions,
    ]
    return "\n".join(map(printable_text, lines))  # a pack may come from anyone


def _interval_text(effect: object) -> str:
    from envmatrix.stats.effects import Effect

    if not isinstance(effect, Effect) or effect.ratio is None:
        return "not measured"
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.3f} (too few blocks)"
    return f"{effect.ratio:.3f} [{effect.low:.3f}, {effect.high:.3f}]"
