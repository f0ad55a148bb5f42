"""The ``envmatrix reproduce`` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, declare_flag, name_and_folder, nonempty_name
from envmatrix.durations_and_sizes import percent_as_fraction
from envmatrix.errors import ExitCode, most_important_code

if TYPE_CHECKING:
    from envmatrix.runner.reproduction.pack_rerun import OpenedPack
    from envmatrix.runner.reproduction.reproduced_effects import Reproduction
    from envmatrix.stats.effects import Effect


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "archive", "ARCHIVE", "an archive that `envmatrix pack` wrote", Path)
    declare_flag(parser, "--check", "only verify the archive and list its contents")
    text = "compare with this run, which was started from the archive earlier"
    declare(parser, "run", "RUN", text, nonempty_name, nargs="?")
    parser.declare_remedies({"--run": "write the run as a word after the archive: ARCHIVE RUN"})
    declare(parser, "--sha256", "HEX", "sha256 that the archive must have")
    declare(parser, "--signers", "FILE", "file of allowed signers (ssh-keygen); refuse others", Path)
    text = "call effects reproduced within this (default: 5%%)"
    declare(parser, "--tolerance", "PERCENT", text, percent_as_fraction, default=0.05)
    declare_flag(parser, "--fail-undecided", "exit code 6 if an effect is undecided")
    declare_flag(parser, "--rebuild", "build images here, and measure even if their files differ from the packed run's")
    text = "folder of a workload's program on this machine, if it was not packed"
    declare(parser, "--program", "WORKLOAD=FOLDER", text, name_and_folder, action="append", default=[])
    shared_options.add(parser, "--results")
    shared_options.add_launcher(parser)
    shared_options.add(parser, "--json", "--quiet")
    parser.examples(
        "envmatrix reproduce run.tar.gz --check", "envmatrix reproduce run.tar.gz --signers allowed_signers --rebuild"
    )
    parser.exit_codes(
        "those of bench for the new run; 3 also if an effect was not reproduced, 6 with --fail-undecided if",
        "one is undecided. If several apply: 130, 4, 7, 6, 3.",
    )


def run(arguments: Arguments) -> int:
    """Verify and rebuild a packed run, run its plan again, and print which effects were reproduced."""
    from envmatrix.api import reproduction_packs
    from envmatrix.runner.reproduction.pack_archive import manifest_summary

    opened = console_io.call(reproduction_packs.open_archive, arguments)
    if arguments.check:
        if arguments.json:
            console_io.print_json({**manifest_summary(opened.manifest), "signed": opened.signed})
        return ExitCode.FINE
    reproduction, code = _rerun_or_compare(opened, arguments)
    code = most_important_code(reproduction.gate(fail_undecided=arguments.fail_undecided), code)
    if arguments.json:
        console_io.print_json(reproduction.to_json(code))
    else:
        console_io.print_folded(describe_reproduction(reproduction))
    return code


def _rerun_or_compare(opened: OpenedPack, arguments: Arguments) -> tuple[Reproduction, ExitCode]:
    """Run the plan of a pack here, or take the named run, and compare."""
    from envmatrix.api import reproduction_packs

    if arguments.run:
        reproduction = console_io.call(reproduction_packs.compare_again, arguments, opened=opened)
        return reproduction, reproduction_packs.bench_exit_code(arguments.run, arguments.results)
    vouched = bool(arguments.signers or arguments.sha256)
    experiment = console_io.call(
        reproduction_packs.begin_reproduction,
        arguments,
        opened=opened,
        new_run=shared_options.read_new_run(arguments),
        programs=dict(arguments.program),
        vouched=vouched,
    )
    watch, ask = progress_and_result.progress_watch(quiet=arguments.quiet)
    reproduction, result = console_io.call(
        reproduction_packs.finish_reproduction, arguments, opened=opened, experiment=experiment, watch=watch, ask=ask
    )
    console_io.print_progress(f"{result.name}: {result.why}")
    return reproduction, progress_and_result.explain_exit(result)


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
    words = f"reproduced: the two effects differ by less than {reproduction.tolerance:.0%}; not reproduced: "
    words += "they differ significantly; undecided: neither is certain"
    lines += ["", words, *reproduction.cautions]
    return "\n".join(map(printable_text, lines))  # a pack may come from anyone


def _interval_text(effect: Effect | None) -> str:
    if effect is None or effect.ratio is None:
        return "not measured"
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.3f} (too few blocks)"
    return f"{effect.ratio:.3f} [{effect.low:.3f}, {effect.high:.3f}]"
