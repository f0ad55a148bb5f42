"""``envmatrix resume``."""

from __future__ import annotations

import argparse

from envmatrix.commands import bench, common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_name", nargs="?", metavar="RUN", help="the run (default: the newest)")
    parser.add_argument("--budget", metavar="TIME", help="a new budget for the whole run, such as 30m")
    common.add_matrix(parser)
    common.add_results(parser)
    bench.add_slurm(parser)
    bench.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Go on where the run stopped: nothing lost, repeated or reordered."""
    from dataclasses import replace

    from envmatrix.errors import InputError
    from envmatrix.trials.experiment import reopen
    from envmatrix.units import parse_duration

    folder = common.find_run(arguments.results, arguments.run_name)
    experiment = reopen(folder, common.matrix_path(arguments), common.say_to_stderr)
    if arguments.budget:
        try:
            budget = parse_duration(arguments.budget)
        except ValueError as error:
            raise InputError(f"--budget: {error}") from error
        plan = replace(experiment.run.plan, budget_s=budget)
        experiment = replace(experiment, run=replace(experiment.run, plan=plan))
    if experiment.run.launcher == "slurm":
        from envmatrix.launchers.slurm.requested import with_options

        asked = with_options(experiment.run.design, arguments)
        experiment = replace(experiment, run=replace(experiment.run, design=asked))
    return bench.carry_out(experiment, arguments)
