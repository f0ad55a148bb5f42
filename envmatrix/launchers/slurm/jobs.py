"""Make the batch job of a block from its parts, and the failed trials of lost jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from envmatrix.block.order import Part
from envmatrix.errors import InputError
from envmatrix.launchers.block_orders import block_order, job_prefix
from envmatrix.launchers.node_start import copy_package
from envmatrix.launchers.slurm.script import BlockJob
from envmatrix.matrix import Slurm
from envmatrix.plan import Slot
from envmatrix.results import Outcome, Trial, trial_of
from envmatrix.results.run import LauncherOptions
from envmatrix.system.validation_messages import validation_message
from envmatrix.trials.experiment import Experiment

#: Variables and defaults of the script itself, whose commands must resolve as they do in the submitting shell.
_OWN_VARIABLES = (("PATH", os.defpath), ("HOME", "/"))


def slurm_options(experiment: Experiment) -> Slurm:
    """Return the run's Slurm options: the design's ``slurm:`` part, overridden by the command line."""
    return overlay(experiment.run.design.slurm, experiment.run.launcher_options)


def overlay(part: Slurm, asked: LauncherOptions) -> Slurm:
    """Return the options with ``asked`` overriding ``part``. Raises InputError for an invalid value."""
    try:
        return Slurm.model_validate({**part.model_dump(), **asked})
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"--{problem['loc'][0]}: {validation_message(problem)}") from error


def make_block_job(
    experiment: Experiment,
    block: int,
    parts: Iterable[Part],
    attempt: int,
    *,
    node: str = "",
    avoid: Iterable[str] = (),
) -> BlockJob:
    """Make the batch job of a block's parts."""
    options = slurm_options(experiment)
    order = block_order(experiment, block, parts, attempt, options.busy)
    return BlockJob(
        job_name=f"{job_prefix(experiment)}b{block:04d}",
        order=order,
        package=copy_package(Path(order.folder).parent),
        options=options,
        variables={name: os.environ.get(name, default) for name, default in _OWN_VARIABLES},
        node=node,
        avoid=tuple(sorted(set(avoid) - set(node.split(",")))),
    )


def lost_trial(slot: Slot, cause: str, node: str) -> Trial:
    """Return the trial of a slot whose job repeatedly died while it ran."""
    remedy = {
        "TIMEOUT": "; give its block more time with --time",
        "OUT_OF_MEMORY": "; give its block more memory",
    }.get(cause, "")
    outcome: Outcome = "timed_out" if cause == "TIMEOUT" else "failed"
    return trial_of(slot, outcome, f"its Slurm job died twice while it ran ({cause}){remedy}", node=node)
