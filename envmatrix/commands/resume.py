"""``envmatrix resume``."""

from __future__ import annotations

import argparse
import sys

from envmatrix.commands import arguments as shared
from envmatrix.commands import bench, common, launching
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    shared.add_budget(parser, "a new budget for the whole run, such as 90s, 10m or 2h")
    shared.add_target(parser, "a new target for the whole run, such as 1%%")
    shared.add_matrix(parser)
    shared.add_results(parser)
    launching.add_launcher_options(parser)
    shared.add_answer(parser)
    parser.examples("envmatrix resume", "envmatrix resume reference-default --budget 20m")


def run(arguments: argparse.Namespace) -> int:
    """Go on where the run stopped: nothing lost, repeated or reordered."""
    from envmatrix.launchers.catalog import LAUNCHERS
    from envmatrix.trials.experiment import reopen
    from envmatrix.trials.resumed import resumed

    folder = common.find_run(arguments.results, arguments.run_name)
    experiment = reopen(folder, common.matrix_path(arguments), common.say_to_stderr)
    kind = LAUNCHERS.make(experiment.run.launcher)
    asked = launching.asked_of(kind, arguments)
    kind.width(experiment.run.design, {**experiment.run.launcher_options, **asked}, 1)  # refuses what cannot be
    command = tuple(sys.argv[1:])
    experiment = resumed(
        experiment, budget=arguments.budget, target=arguments.target, launcher_options=asked, command=command
    )
    return bench.carry_out(experiment, arguments)
