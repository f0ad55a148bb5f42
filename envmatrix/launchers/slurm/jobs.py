"""From the slots of a block to its batch job, and from what a job left to trials."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from envmatrix.engines.base import Engine, Held, HeldByScripts, Job, RunsAsCommand
from envmatrix.errors import EngineError, EnvmatrixError, InputError
from envmatrix.launchers.slurm.files import BlockFolder, TrialEnd
from envmatrix.launchers.slurm.pending_block import Flight
from envmatrix.launchers.slurm.script import BlockJob, Step, Together
from envmatrix.matrix import Slurm
from envmatrix.plan import Slot
from envmatrix.plan.interleaving import turn_order
from envmatrix.results import Outcome, Trial, trial_of
from envmatrix.results.run import LauncherOptions
from envmatrix.system.atomic_files import store_error
from envmatrix.system.bench_options import hides_value, node_count
from envmatrix.system.shared_files import read_with_retry
from envmatrix.system.validation_messages import validation_message
from envmatrix.system.write_retry import insisting
from envmatrix.trials.batches import TrialGrouper
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.trial import STOPPED_REASON, make_finished_trial, make_job, program_folder

#: So many rounds have an order of their own; where nobody knows how many there will be, they begin again after these.
_ROUNDS = 200


def slurm_options(experiment: Experiment) -> Slurm:
    """Return what the run asks of Slurm: the design's ``slurm:`` part, and over it what the command line asked."""
    return overlay(experiment.run.design.slurm, experiment.run.launcher_options)


def overlay(part: Slurm, asked: LauncherOptions) -> Slurm:
    """Return the part with what was asked laid over it; an InputError names what cannot be."""
    try:
        return Slurm.model_validate({**part.model_dump(), **asked})
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"--{problem['loc'][0]}: {validation_message(problem)}") from error


def job_prefix(experiment: Experiment) -> str:
    """Return what the names of this run's jobs begin with: found again after a crash, no other run's."""
    key = f"{experiment.folder.path.resolve()}|{experiment.run.created}"
    return f"envmatrix-{hashlib.sha256(key.encode()).hexdigest()[:10]}-"


def block_folder(experiment: Experiment, block: int) -> BlockFolder:
    """Return the folder of a block's jobs."""
    return BlockFolder(experiment.folder.path.resolve() / "slurm" / f"b{block:04d}")


def script_variables() -> dict[str, str]:
    """Return the variables of a script: its own commands must be found as they are by whoever submits."""
    return {name: os.environ.get(name, default) for name, default in (("PATH", os.defpath), ("HOME", "/"))}


def make_step(experiment: Experiment, slot: Slot, files: BlockFolder, attempt: int, group: str = "") -> Step:
    """Make one trial's step, of a ``group`` that lives together; EnvmatrixError says why it cannot be a command."""
    engine = experiment.engines[slot.arm.engine]
    workload = experiment.run.workloads[slot.arm.workload]
    secret = next((name for name in workload.pass_env if hides_value(name)), None)
    if secret:
        raise EngineError(f"pass_env: {secret} would be written into the script of a job, where others may read it")
    job = make_job(experiment, slot, files.work(slot.trial, attempt, group), gate=bool(group))
    if not isinstance(engine, RunsAsCommand):
        raise EngineError(f"engine {engine.name} runs no job as a command", remedy="use another engine with Slurm")
    command = engine.command_line(job)
    needs = (*command.needs, *job.mounts.read.values(), *job.mounts.same)
    nodes = node_count(workload.options)
    program = program_folder(experiment, slot, job)
    step = Step(slot.trial, slot.arm.name, replace(command, needs=needs), job.limits.seconds, nodes, program)
    apart = experiment.run.design.turn_apart if workload.tells_steps else 0
    return replace(step, held="" if workload.command else _held(engine), apart=apart) if group else step


def _held(engine: Engine) -> Held:
    if not isinstance(engine, HeldByScripts):
        raise EngineError(f"engine {engine.name} runs no command that a script can stop for a while")
    return engine.held


def widest(experiment: Experiment) -> int:
    """Return how many nodes a block takes: as many as its widest workload is spread over."""
    return max((node_count(workload.options) for workload in experiment.run.workloads.values()), default=1)


def group_names(block: list[Slot], groups: TrialGrouper) -> dict[str, str]:
    """Return, for the trials of a whole block that live together, the name of their group's folder."""
    parts = [part for part in groups.of(block) if groups.runs_side_by_side(part[0])]
    return {slot.trial: f"{part[0].trial}.turns" for part in parts for slot in part}


def make_parts(
    experiment: Experiment, flight: Flight, groups: TrialGrouper, attempt: int
) -> tuple[list[Step | Together], list[Trial]]:
    """Make what a block's job does, in this order; a slot that cannot be run at all becomes a failed trial."""
    parts: list[Step | Together] = []
    failed: list[Trial] = []
    for slots in groups.of(list(flight.slots.values())):
        name = flight.groups.get(slots[0].trial, "")
        steps = []
        for slot in slots:
            try:
                steps.append(make_step(experiment, slot, flight.files, attempt, name))
            except EnvmatrixError as error:
                failed.append(trial_of(slot, "failed", str(error)))
        if name and steps:
            made = [slot for slot in slots if slot.trial in {step.trial for step in steps}]
            together = _together(experiment, name, made, steps, groups.needed_bytes(made))
            parts.append(together if groups.in_turns(made[0]) else _in_one_go(together))
        else:
            parts += steps
    return parts, failed


def _together(experiment: Experiment, name: str, slots: list[Slot], steps: list[Step], needs: int) -> Together:
    design, first = experiment.run.design, slots[0]
    known = experiment.run.workloads[first.arm.workload].options.get("steps")
    rounds = math.ceil(int(known) / design.turn) if isinstance(known, (int, str)) else _ROUNDS
    places = {step.trial: place for place, step in enumerate(steps, 1)}
    orders = (turn_order(design.seed, first.block, number, places) for number in range(min(rounds, _ROUNDS)))
    told = tuple(tuple(places[trial] for trial in order) for order in orders)
    return Together(name, tuple(steps), design.turn, needs, told)


def _in_one_go(group: Together) -> Together:
    """Return trials that only start and end side by side: each has one turn, and none of its steps is set apart."""
    return replace(group, steps=tuple(replace(step, apart=0) for step in group.steps), turn=0, orders=group.orders[:1])


def make_block_job(
    experiment: Experiment,
    block: int,
    parts: Iterable[Step | Together],
    attempt: int,
    *,
    node: str = "",
    avoid: Iterable[str] = (),
) -> BlockJob:
    """Make the batch job of a block's parts."""
    return BlockJob(
        job_name=f"{job_prefix(experiment)}b{block:04d}",
        title=f"envmatrix run {experiment.run.name}, block {block}",
        folder=block_folder(experiment, block).path,
        attempt=attempt,
        parts=tuple(parts),
        options=slurm_options(experiment),
        variables=script_variables(),
        node=node,
        avoid=tuple(sorted(set(avoid) - set(node.split(",")))),
    )


def trial_from_files(experiment: Experiment, slot: Slot, end: TrialEnd) -> Trial:
    """Judge what a trial left on the shared file system, exactly as one that ran here."""
    job: Job = make_job(experiment, slot, end.folder / "work")
    log = end.folder / "log"
    if job.log:
        _copy(log, job.log)
    trial = make_finished_trial(experiment, slot, end.exit, job, started=end.started, node=end.node)
    trial = replace(trial, repeated=end.repeated, ended_before=end.before, node_checks=end.checks)
    trial = replace(trial, together=end.together)
    return replace(trial, outcome="invalid", reason=STOPPED_REASON) if end.stops else trial


def _copy(log: Path, target: Path) -> None:
    try:
        with insisting(lambda: target.open("wb"), target) as file:
            read_with_retry(lambda: _copied(log, file), log)
    except OSError as error:
        raise store_error(error, target) from error


def _copied(log: Path, file: IO[bytes]) -> None:
    file.seek(0)
    with log.open("rb") as source:
        shutil.copyfileobj(source, file)
    file.truncate()


def lost_trial(slot: Slot, cause: str, node: str) -> Trial:
    """Make the trial of a slot whose job died again and again while it ran."""
    remedy = {
        "TIMEOUT": "; give its block more time with --time",
        "OUT_OF_MEMORY": "; give its block more memory",
    }.get(cause, "")
    outcome: Outcome = "timed_out" if cause == "TIMEOUT" else "failed"
    return trial_of(slot, outcome, f"its Slurm job died twice while it ran ({cause}){remedy}", node=node)
