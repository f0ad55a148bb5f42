"""Conversion between slots and node files: the order that a node executes, and trials from the results it left."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from envmatrix.block.block_instructions import BlockOrder, Part, TrialOrder, Turns
from envmatrix.engines.base import Job, RunsAsCommand
from envmatrix.errors import EngineError, EnvmatrixError
from envmatrix.launchers.block_files import BlockFolder, TrialEnd
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.results import Trial, trial_of
from envmatrix.system.atomic_files import insisting, store_errors
from envmatrix.system.bench_options import hides_value, node_count
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.reading_with_retries import read_with_retry
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from envmatrix.trials.execution import (
    REPEATS,
    STOPPED_REASON,
    count_stops,
    make_finished_trial,
    make_job,
    program_folder,
)
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.interleave import cpus_of

#: Seconds for which a node retries writing to the results folder.
PATIENCE_S = 60.0
#: Seconds a job may take beyond the sum of its trials' limits: start, first reads of images, cleanup.
_SLACK_S = 120.0


def block_folder(experiment: Experiment, block: int) -> BlockFolder:
    """Return the folder of a block's jobs."""
    return BlockFolder(experiment.folder.path.resolve() / experiment.run.launcher / f"b{block:04d}")


def job_prefix(experiment: Experiment) -> str:
    """Return the prefix of this run's job names: unique to the run, and the same after a crash."""
    key = f"{experiment.folder.path.resolve()}|{experiment.run.created}"
    return f"envmatrix-{hashlib.sha256(key.encode()).hexdigest()[:10]}-"


def make_trial(experiment: Experiment, slot: Slot, files: BlockFolder, attempt: int, group: str = "") -> TrialOrder:
    """Return the order of one trial, as part of ``group`` if given. EnvmatrixError: it cannot run as a command."""
    engine = experiment.engines[slot.arm.engine]
    workload = experiment.run.workloads[slot.arm.workload]
    secret = next((name for name in workload.pass_env if hides_value(name)), None)
    if secret:
        raise EngineError(f"pass_env: {secret} would be written into the order of a job, where others may read it")
    job = make_job(experiment, slot, files.work(slot.trial, attempt, group), gate=bool(group))
    if not isinstance(engine, RunsAsCommand):
        raise EngineError(f"engine {engine.name} runs no job as a command", remedy="use another engine")
    command = engine.command_line(job)
    program = program_folder(experiment, slot, job)
    return TrialOrder(
        slot.trial,
        slot.arm.name,
        command.argv,
        command.env,
        job.limits.seconds,
        command.keep,
        command.place,
        [str(path) for path in (*command.needs, *job.mounts.read.values(), *job.mounts.same)],
        node_count(workload.options),
        [str(words) for words in program] if program else None,
        pauses_itself=bool(workload.command),
        apart=experiment.run.design.turn_apart if workload.tells_steps else 0,
        srun=experiment.run.environments[slot.arm.runs].srun,
    )


def nodes_per_block(experiment: Experiment) -> int:
    """Return how many nodes a block needs: the most that one of its workloads is spread over."""
    return max((node_count(workload.options) for workload in experiment.run.workloads.values()), default=1)


def group_names(block: list[Slot], groups: TrialGrouper) -> dict[str, str]:
    """Return the name of the group's folder for each trial of a whole block that runs side by side with others."""
    parts = [part for part in groups.of(block) if groups.starts_together(part[0])]
    return {slot.trial: f"{part[0].trial}.turns" for part in parts for slot in part}


def make_parts(
    experiment: Experiment, pending: PendingBlock, groups: TrialGrouper, attempt: int
) -> tuple[list[Part], list[Trial]]:
    """Return the parts of a block's job in their order, and a failed trial for each slot that cannot run."""
    parts: list[Part] = []
    failed: list[Trial] = []
    for slots in groups.of(list(pending.slots.values())):
        name = pending.groups.get(slots[0].trial, "")
        trials = []
        for slot in slots:
            try:
                trials.append(make_trial(experiment, slot, pending.files, attempt, name))
            except EnvmatrixError as error:
                failed.append(trial_of(slot, "failed", str(error)))
        if name and trials:
            made = [slot for slot in slots if slot.trial in {trial.name for trial in trials}]
            parts.append(Part(name, trials, _turns(experiment, made, groups)))
        else:
            parts += [Part(trial.name, [trial]) for trial in trials]
    return parts, failed


def block_order(
    experiment: Experiment, block: int, parts: Iterable[Part], attempt: int, busy: float | None = None
) -> BlockOrder:
    """Return the order for one attempt at a block."""
    title = f"envmatrix run {experiment.run.name}, block {block}"
    folder = str(block_folder(experiment, block).path)
    return BlockOrder(title, folder, attempt, tuple(parts), 1.0 if busy is None else busy, PATIENCE_S)


def block_seconds(parts: Iterable[Part]) -> float:
    """Return the most seconds that a block's job may take.

    Interleaved trials count twice: they do the same work, and one that never gets ready, or never ends, can use up
    that time once more.
    """
    return sum(trial.limit_s * (2 if part.turns else 1) for part in parts for trial in part.trials) + _SLACK_S


def most_seconds(trials: int, in_turns: int, limit_s: float) -> float:
    """Return the same for ``trials`` trials with equal limits, of which ``in_turns`` are interleaved."""
    return (trials + in_turns) * limit_s + _SLACK_S


def _turns(experiment: Experiment, slots: list[Slot], groups: TrialGrouper) -> Turns:
    """Return the interleaving of a group; trials that only start and end side by side have one turn each."""
    design = experiment.run.design
    steps = design.turn if groups.in_turns(slots[0]) else 0
    return Turns(design.seed, slots[0].block, steps, groups.needed_bytes(slots), cpus_of(design))


def collected(experiment: Experiment, pending: PendingBlock, progress: ProgressCallback) -> Iterator[Trial]:
    """Yield the trials that have ended; the caller writes each to disk before this continues.

    The files of a group are kept until all its trials are on disk, so after an interruption all are read again.
    """
    for unit, slots in pending.units().items():
        finished_slots = [slot for slot in slots if pending.files.holds(pending.result_path(slot))]
        if not finished_slots:
            continue
        if broken := next((slot for slot in finished_slots if pending.end(slot) is None), None):
            if damaged := pending.files.set_aside_if_damaged(unit, pending.result_path(broken)):
                progress(f"what {unit} left is damaged and lies in {damaged} now; it runs again")
            continue
        ends = [(slot, pending.end(slot)) for slot in finished_slots]
        trials = [trial_from_files(experiment, slot, end) for slot, end in ends if end]
        thrown_away = pending.files.thrown_away(unit)
        stopped = any(count_stops(trial.record) for trial in trials)
        if stopped and (times := pending.files.throw_away(unit)) <= REPEATS:
            progress(f"{unit} was paused while it ran: running it again ({times} of {REPEATS} times)")
            continue
        if trials[0].repeated:
            progress(f"{unit} ran {trials[0].repeated + 1} times: its job was suspended, or could not write")
        if len(finished_slots) > 1 and all(trial.together == 1 for trial in trials):
            progress(
                f"{unit} ran one process after the other: node {trials[0].node} has no memory for all of them at once"
            )
        yield from (replace(trial, repeated=trial.repeated + thrown_away) for trial in trials)
        pending.files.mark_done_and_delete(unit)
        for slot in finished_slots:
            del pending.slots[slot.trial]
        pending.finished += len(finished_slots)


def trial_from_files(experiment: Experiment, slot: Slot, end: TrialEnd) -> Trial:
    """Return the trial of the files on the shared file system, judged like a trial that ran here."""
    job: Job = make_job(experiment, slot, end.folder / "work")
    if job.log:
        _copy(end.folder / "log", job.log)
    trial = make_finished_trial(experiment, slot, end.exit, job, started=end.epoch, node=end.node)
    trial = replace(
        trial, repeated=end.repeated, ended_before=end.before, node_checks=end.checks, together=end.together
    )
    return replace(trial, outcome="invalid", reason=STOPPED_REASON) if end.stops else trial


def _copy(log: Path, target: Path) -> None:
    def copy_into(file: IO[bytes]) -> None:
        file.seek(0)
        with log.open("rb") as source:
            shutil.copyfileobj(source, file)
        file.truncate()

    with store_errors(target), insisting(lambda: target.open("wb"), target) as file:
        read_with_retry(lambda: copy_into(file), log)
