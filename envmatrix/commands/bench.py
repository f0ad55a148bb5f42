"""``envmatrix bench``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from envmatrix.commands import arguments as shared
from envmatrix.commands import common, launching
from envmatrix.commands.grammar import Parser
from envmatrix.errors import ExitCode, InputError
from envmatrix.launchers.base import ShowsScripts
from envmatrix.launchers.catalog import LAUNCHERS

if TYPE_CHECKING:
    from envmatrix.host import Host
    from envmatrix.launchers.base import LauncherKind
    from envmatrix.matrix import Design, Matrix
    from envmatrix.report.summary import Summary
    from envmatrix.runner.loop import Ended
    from envmatrix.store import RunFolder
    from envmatrix.store.run import Asked
    from envmatrix.trials.experiment import Experiment


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_design(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the run (default: design and time)")
    shared.add_results(parser)
    launching.add_launcher(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="with a launcher that submits scripts: print the first, submit nothing"
    )
    shared.add_answer(parser)
    parser.examples(
        "envmatrix bench quick --budget 10m",
        "envmatrix bench --environments tcmalloc,intel-omp --engine docker --name containers",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare, run and report one design."""
    from envmatrix.trials.experiment import begin
    from envmatrix.trials.requested import requested_design, requested_engines

    matrix = common.load_matrix(arguments)
    design = requested_design(matrix, arguments.design, shared.overrides(arguments))
    engines = requested_engines(design, arguments.engine, common.say_to_stderr)
    kind = LAUNCHERS.make(arguments.launcher)
    if arguments.dry_run and not isinstance(kind, ShowsScripts):
        raise InputError(
            f"--dry-run shows scripts, and launcher {kind.name} has none", remedy="`envmatrix plan` shows the order"
        )
    asked = launching.asked_of(kind, arguments)
    host = place(kind, matrix, design, engines, asked)
    experiment = begin(
        matrix,
        design,
        engines,
        arguments.results,
        common.say_to_stderr,
        tuple(sys.argv[1:]),
        kind.name,
        host,
        asked,
        name=_run_name(arguments.name),
    )
    if arguments.dry_run and isinstance(kind, ShowsScripts):
        return show_scripts(kind, experiment)
    return carry_out(experiment, arguments)


def place(kind: LauncherKind, matrix: Matrix, design: Design, engines: tuple[str, ...], asked: Asked) -> Host | None:
    """Return the machine trials will run on (None: this one).

    Whatever the launcher cannot do is an error here, before anything is built or written.
    """
    from envmatrix.benchmark import nodes_of
    from envmatrix.engines.catalog import find_engine
    from envmatrix.launchers import catalog

    spread = {name: nodes_of(matrix.workloads[name].options) for name in (*design.workloads, *design.application)}
    return catalog.place(kind, design, asked, [find_engine(name) for name in engines], spread, common.say_to_stderr)


def _run_name(text: str | None) -> str | None:
    from envmatrix.matrix.model import NAME

    if text is not None and not NAME.match(text):
        raise InputError(f"--name: {text!r} is no usable name", remedy="use letters, digits, '.', '_', '+' and '-'")
    return text


def show_scripts(kind: ShowsScripts, experiment: Experiment) -> int:
    """Print the scripts that the first blocks would be handed over with; leave no run behind."""
    import shutil

    try:
        common.print_text("\n".join(kind.scripts(experiment)))
    finally:
        shutil.rmtree(experiment.folder.path)
    return ExitCode.FINE


def measure(experiment: Experiment, *, quiet: bool) -> Ended:
    """Run what is left of an experiment, with progress on stderr."""
    from envmatrix.runner.loop import run as run_experiment
    from envmatrix.runner.progress import watch

    for name, reason in experiment.run.skipped.items():
        common.say_to_stderr(f"skipped {name}: {reason}")
    with watch(experiment, quiet=quiet) as observer:
        ask = common.ask if sys.stdin.isatty() and sys.stderr.isatty() else None
        launcher = LAUNCHERS.make(experiment.run.launcher).open(experiment, observer.say, ask)
        ended = run_experiment(experiment, launcher, observer, observer.say)
    common.say_to_stderr(f"{experiment.run.name}: {ended.why}")
    return ended


def carry_out(experiment: Experiment, arguments: argparse.Namespace) -> int:
    """Run what is left of an experiment and report it."""
    ended = measure(experiment, quiet=arguments.quiet)
    summary = show(experiment.folder, as_json=arguments.json)
    if not arguments.json:
        tell_how_to_use(experiment, summary)
    return end(experiment, ended)


def end(experiment: Experiment, ended: Ended) -> ExitCode:
    """Say how to go on where something is left, and return the exit code."""
    if ended.interrupted:
        common.say_to_stderr(f"go on with: envmatrix resume {experiment.run.name}")
        return ExitCode.INTERRUPTED
    if ended.incomplete:
        common.say_to_stderr(
            f"{ended.incomplete} block(s) are not complete; go on with: envmatrix resume {experiment.run.name}"
        )
    code = exit_code(ended.outcomes)
    return ExitCode.SOME_FAILED if ended.incomplete and code == ExitCode.FINE else code


def show(folder: RunFolder, *, as_json: bool) -> Summary:
    """Write the reports of a run and print its answer."""
    from envmatrix.report.json_file import summary_to_json
    from envmatrix.report.terminal import present
    from envmatrix.report.write import write_reports

    summary = write_reports(folder, say=common.say_to_stderr)
    if as_json:
        common.print_json(summary_to_json(summary))
    else:
        present(summary, common.console())
    return summary


def tell_how_to_use(experiment: Experiment, summary: Summary) -> None:
    """Print the exact lines that set up the best environment, and where the report is."""
    from envmatrix.plan.export import export_lines
    from envmatrix.trials.trial import preload_paths

    for group in summary.groups:
        if group.best is None:
            continue
        environment = experiment.run.environments[group.best.arm.runs]
        prepared = experiment.prepared[environment.image.name, group.engine]
        lines = export_lines(environment, preload_paths(prepared, environment), "sh")
        common.print_text(f"\nthe best environment for {group.workload} on {group.engine}:\n\n{lines}\n")
    common.print_text(f"report: {experiment.folder.path / 'report.html'}")


def exit_code(outcomes: dict[str, int]) -> ExitCode:
    """Return 4 when not one trial was fine, 3 when some failed, else 0. A skipped one did not fail."""
    if not outcomes.get("ok"):
        return ExitCode.NOTHING_RAN
    broken = sum(outcomes.get(name, 0) for name in ("failed", "invalid", "timed_out"))
    return ExitCode.SOME_FAILED if broken else ExitCode.FINE
