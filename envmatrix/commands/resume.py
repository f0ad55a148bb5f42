"""``envmatrix resume``."""

from __future__ import annotations

import argparse

from envmatrix.commands import arguments as shared
from envmatrix.commands import bench, common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    shared.add_budget(parser, "a new budget for the whole run, such as 90s, 10m or 2h")
    shared.add_matrix(parser)
    shared.add_results(parser)
    shared.add_slurm(parser)
    shared.add_answer(parser)
    parser.examples("envmatrix resume", "envmatrix resume reference-default --budget 20m")


def run(arguments: argparse.Namespace) -> int:
    """Go on where the run stopped: nothing lost, repeated or reordered."""
    from dataclasses import replace

    from envmatrix.trials.experiment import reopen

    folder = common.find_run(arguments.results, arguments.run_name)
    experiment = reopen(folder, common.matrix_path(arguments), common.say_to_stderr)
    if arguments.budget:
        plan = replace(experiment.run.plan, budget_s=arguments.budget)
        experiment = replace(experiment, run=replace(experiment.run, plan=plan))
    if experiment.run.launcher == "slurm":
        from envmatrix.launchers.slurm.requested import with_options

        asked = with_options(experiment.run.design, arguments)
        experiment = replace(experiment, run=replace(experiment.run, design=asked))
    return bench.carry_out(experiment, arguments)
