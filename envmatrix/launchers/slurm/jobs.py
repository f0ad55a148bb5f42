"""From the slots of a block to its batch job, and from what a job left to trials."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from envmatrix.benchmark import hides, nodes_of
from envmatrix.engines.base import Job, RunsAsCommand
from envmatrix.errors import EngineError, EnvmatrixError, InputError
from envmatrix.launchers.slurm.files import BlockFolder, TrialEnd
from envmatrix.launchers.slurm.script import BlockJob, Step
from envmatrix.matrix import Slurm
from envmatrix.plan import Slot
from envmatrix.store import Outcome, Trial, trial_of
from envmatrix.store.files import os_error
from envmatrix.store.patience import insisting
from envmatrix.store.run import Asked
from envmatrix.store.shared import settled
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.trial import STOPPED, judged, make_job, program_folder
from envmatrix.validation import in_words


def slurm_options(experiment: Experiment) -> Slurm:
    """Return what the run asks of Slurm: the design's ``slurm:`` part, and over it what the command line asked."""
    return overlay(experiment.run.design.slurm, experiment.run.launcher_options)


def overlay(part: Slurm, asked: Asked) -> Slurm:
    """Return the part with what was asked laid over it; an InputError names what cannot be."""
    try:
        return Slurm.model_validate({**part.model_dump(), **asked})
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"--{problem['loc'][0]}: {in_words(problem)}") from error


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


def make_step(experiment: Experiment, slot: Slot, files: BlockFolder, attempt: int) -> Step:
    """Make one trial's step; EnvmatrixError says why its engine cannot run it as a command."""
    engine = experiment.engines[slot.arm.engine]
    workload = experiment.run.workloads[slot.arm.workload]
    secret = next((name for name in workload.pass_env if hides(name)), None)
    if secret:
        raise EngineError(f"pass_env: {secret} would be written into the script of a job, where others may read it")
    job = make_job(experiment, slot, files.work(slot.trial, attempt))
    if not isinstance(engine, RunsAsCommand):
        raise EngineError(f"engine {engine.name} runs no job as a command", remedy="use another engine with Slurm")
    command = engine.command_line(job)
    needs = (*command.needs, *job.mounts.read.values(), *job.mounts.same)
    nodes = nodes_of(workload.options)
    program = program_folder(experiment, slot, job)
    return Step(slot.trial, slot.arm.name, replace(command, needs=needs), job.limits.seconds, nodes, program)


def widest(experiment: Experiment) -> int:
    """Return how many nodes a block takes: as many as its widest workload is spread over."""
    return max((nodes_of(workload.options) for workload in experiment.run.workloads.values()), default=1)


def make_steps(
    experiment: Experiment, slots: Iterable[Slot], files: BlockFolder, attempt: int
) -> tuple[list[Step], list[Trial]]:
    """Make the steps of a block; a slot that cannot be run at all becomes a failed trial."""
    steps, failed = [], []
    for slot in slots:
        try:
            steps.append(make_step(experiment, slot, files, attempt))
        except EnvmatrixError as error:
            failed.append(trial_of(slot, "failed", str(error)))
    return steps, failed


def make_block_job(
    experiment: Experiment,
    block: int,
    steps: Iterable[Step],
    attempt: int,
    *,
    node: str = "",
    avoid: Iterable[str] = (),
) -> BlockJob:
    """Make the batch job of a block's steps."""
    return BlockJob(
        job_name=f"{job_prefix(experiment)}b{block:04d}",
        title=f"envmatrix run {experiment.run.name}, block {block}",
        folder=block_folder(experiment, block).path,
        attempt=attempt,
        steps=tuple(steps),
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
    trial = judged(experiment, slot, end.exit, job, started=end.started, node=end.node)
    trial = replace(trial, repeated=end.repeated, ended_before=end.before, node_checks=end.checks)
    return replace(trial, outcome="invalid", reason=STOPPED) if end.stops else trial


def _copy(log: Path, target: Path) -> None:
    try:
        with insisting(lambda: target.open("wb"), target) as file:
            settled(lambda: _copied(log, file), log)
    except OSError as error:
        raise os_error(error, target) from error


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
