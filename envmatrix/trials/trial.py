"""One trial: a fresh process in one environment, and what its record says of it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from envmatrix.block.barrier import FOLDER
from envmatrix.block.program_folder import RECORD
from envmatrix.engines.base import Engine, Job, Limits, Mounts, Prepared, library_path
from envmatrix.errors import EngineError, EnvmatrixError, NoTrialError, StoreError
from envmatrix.evidence.evidence import Evidence
from envmatrix.evidence.record import Record, read_record
from envmatrix.matrix import Design
from envmatrix.matrix.model import Workload
from envmatrix.matrix.variables import near
from envmatrix.plan import Slot
from envmatrix.plan.environment import Environment
from envmatrix.results import Outcome, Trial, trial_of
from envmatrix.system import bench_options
from envmatrix.system.atomic_files import check_room
from envmatrix.system.host import parse_cpus
from envmatrix.system.process import Exit
from envmatrix.system.regular_files import RefusedFileError, read_bytes
from envmatrix.system.shared_files import settled
from envmatrix.trials import orphans, own_program
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.failure_reason import last_line, why_program_failed
from envmatrix.trials.program_files import edited_files
from envmatrix.trials.program_variables import given_variables, named_in
from envmatrix.trials.verification import Proof, prove

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES = "files"
#: Why a trial does not count that slept through a part of its time.
STOPPED = "it was stopped while it ran and went on later (SIGSTOP, a pause, a suspended job): its times are not its own"
#: How often a trial that was stopped runs again before it counts as invalid.
REPEATS = 3


def base_variables(work: str, bench: str, python: str) -> dict[str, str]:
    """Return the variables every trial starts from; nothing else of the host gets in.

    The programs beside ``python`` (torchrun, ...) come first on the PATH, as in an activated venv. HOME is the
    trial's own folder, so that neither ~/.local nor a dot file of the user takes part.
    """
    return {
        "PATH": f"{PurePosixPath(python).parent}:{_PATH}",
        "HOME": work,
        "USER": "envmatrix",  # a container's user has no entry in passwd, and torch asks for a name
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 - the one writable place a read-only container has
        "PYTHONPATH": str(PurePosixPath(bench).parent),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def environment_variables(environment: Environment, written: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what an environment sets; a variable it declares absent is simply not there.

    The values of these may be recorded, and of those that a workload has ``written``.
    """
    found = {name: value for name, value in environment.variables.items() if value is not None}
    return {**found, **bench_options.variables_to_show({**(written or {}), **found})}


def packages_to_look_up(environments: Iterable[Environment]) -> dict[str, str]:
    """Return the variable that has a process say which version it has of each package that a claim names."""
    return bench_options.packages_to_look_up(claim.path for one in environments for claim in one.claims)


def trial_variables(workload: Workload, environment: Environment, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a trial: the base's, its program's own, and above all what the environment sets."""
    absent = {name for name, value in environment.variables.items() if value is None}
    given = given_variables(workload, base) if workload.command else base
    return {
        **{name: value for name, value in given.items() if name not in absent},
        **environment_variables(environment, workload.env),
    }


def preload_paths(prepared: Prepared, environment: Environment) -> tuple[str, ...]:
    """Return the absolute paths, inside the environment, that LD_PRELOAD lists."""
    return tuple(library_path(prepared, key, file) for key, file in environment.preload)


def placed_limits(environment: Environment, seconds: float, cpus: str | None = None) -> Limits:
    """Return the limits of a process: its time, and where the environment (else ``cpus``) places it."""
    placed, nodes = environment.cpus or cpus, environment.memory_nodes
    return Limits(
        seconds=seconds,
        cpus=parse_cpus(placed) if placed else (),
        memory_nodes=parse_cpus(nodes) if nodes else (),
        cpu_quota=environment.cpu_quota,
    )


def make_limits(design: Design, environment: Environment) -> Limits:
    """Return a trial's limits: the design's, narrowed by where the environment places its CPUs."""
    return replace(
        placed_limits(environment, design.trial_limit, design.cpus),
        memory_bytes=design.memory,
        shm_bytes=design.shm,
        gpus=design.gpus,
    )


def bench_arguments(
    workload: Workload, inside: Mapping[str, str], python: str, *, gate: bool = False, look_s: float | None = None
) -> tuple[str, ...]:
    """Return the arguments that run a workload with ``python -m bench``.

    With a ``gate`` it waits for its turns, with ``look_s`` it is a long look.
    """
    record = f"{inside['work']}/{RECORD}"
    place = f"{inside['work']}/{FOLDER}" if gate else ""
    if workload.command:
        return own_program.command_arguments(workload, record, python, inside["bench"], place)
    chosen = bench_options.arguments(workload.options)
    turns = (f"--gate={place}",) if gate else ()
    look = (f"--look={look_s:.1f}",) if look_s is not None else ()
    return ("-m", "bench", "run", f"--record={record}", f"--data-dir={inside['data']}", *turns, *look, *chosen)


def make_job(experiment: Experiment, slot: Slot, work: Path, *, gate: bool = False) -> Job:
    """Make the job of one slot: a pure function of the experiment but for the paths the engine gives."""
    arm = slot.arm
    environment = experiment.run.environments[arm.runs]
    engine = experiment.engines[arm.engine]
    prepared = experiment.prepared[environment.image_key, arm.engine]
    workload = experiment.run.workloads[arm.workload]
    files = {_FILES: Path(workload.files)} if workload.command and workload.files else {}
    same = tuple(Path(path) for path in workload.mounts)
    mounts = Mounts(work, {"bench": experiment.bench, "data": experiment.data, **files}, same)
    inside = engine.inside(mounts)
    return Job(
        run=experiment.run.name,
        label=slot.trial,
        prepared=prepared,
        argv=(prepared.python, *bench_arguments(workload, inside, prepared.python, gate=gate, look_s=slot.look_s)),
        env={
            **trial_variables(workload, environment, base_variables(inside["work"], inside["bench"], prepared.python)),
            **packages_to_look_up(experiment.run.environments.values()),
            "ENVMATRIX_PAD": "x" * slot.padding,
        },
        preload=preload_paths(prepared, environment),
        mounts=mounts,
        limits=replace(
            make_limits(experiment.run.design, environment), network=bench_options.nodes_of(workload.options) > 1
        ),
        log=experiment.folder.logs / f"{slot.trial}.log",
    )


def program_folder(experiment: Experiment, slot: Slot, job: Job) -> tuple[Path, str, str] | None:
    """Return the folder of the user's own program, its path inside the environment, and the name of its metric file.

    None where there is no such program.
    """
    if _FILES not in job.mounts.read:
        return None
    inside = experiment.engines[slot.arm.engine].inside(job.mounts)[_FILES]
    return job.mounts.read[_FILES], inside, own_program.metric_file(experiment.run.workloads[slot.arm.workload])


def run_trial(experiment: Experiment, slot: Slot) -> Trial:
    """Run one slot to its end. A broken trial is a value with its reason, never an exception.

    Raises NoTrialError when its process was not started, or its engine or image went away.
    """
    reason = experiment.run.skipped.get(slot.arm.name)
    if reason:
        return trial_of(slot, "skipped", reason)
    left = orphans.end_processes()
    work = orphans.folder() / experiment.run.name / slot.trial
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    started, begun = time.time(), time.monotonic()
    try:
        job = make_job(experiment, slot, work)
        job = replace(job, env={**job.env, **orphans.mark(experiment.run.name, slot)})
        program = program_folder(experiment, slot, job)
        job = own_program.with_files(experiment.engines[slot.arm.engine], job, *program) if program else job
        check_image(experiment.engines[slot.arm.engine], job)
        ended = _run(experiment.engines[slot.arm.engine], job)
        return replace(judged(experiment, slot, ended, job, started=started), ended_before=left)
    except (StoreError, NoTrialError):
        raise
    except EnvmatrixError as error:
        return refused(slot, error, started=started, wall_s=time.monotonic() - begun)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_image(engine: Engine, job: Job) -> None:
    """Raise NoTrialError where an image is gone, or another lies in its place (it may well run), or nobody can say."""
    try:
        held = engine.holds(job.prepared)
    except EngineError as error:
        raise NoTrialError(error.message, remedy=error.remedy) from error
    if not held:
        raise NoTrialError(f"image {job.prepared.image} went away, or is another one, before it ran")


def _run(engine: Engine, job: Job) -> Exit:
    ended = engine.run(job)
    if not ended.ok and not engine.holds(job.prepared):
        raise NoTrialError(f"image {job.prepared.image} went away while it ran")
    return ended


def refused(slot: Slot, error: EnvmatrixError, *, started: float | None = None, wall_s: float = 0.0) -> Trial:
    """Make the trial of a process that could not be started as this environment says."""
    return trial_of(slot, "failed", str(error), wall_s=wall_s, started=time.time() if started is None else started)


def judged(experiment: Experiment, slot: Slot, ended: Exit, job: Job, *, started: float, node: str = "") -> Trial:
    """Make the trial of a process that has ended, here or on ``node``, from what it left in its work folder.

    A StoreError where it failed and its log's disk is full: that may be why, and nothing of it could be recorded.
    """
    outcome, reason, document, unproven = judge(experiment, slot, ended, job)
    if outcome == "failed" and job.log:
        check_room(job.log.parent)
    trial = trial_of(slot, outcome, reason, wall_s=ended.wall_s, started=started, node=node, document=document)
    return replace(trial, unproven=unproven)


def judge(
    experiment: Experiment, slot: Slot, ended: Exit, job: Job
) -> tuple[Outcome, str, Mapping[str, object] | None, tuple[str, ...]]:
    """Say what a trial's end, record and evidence amount to, and what of its environment nothing was seen of."""
    body, record = load_record(job.mounts.work / RECORD)
    if ended.stops or stops_of(record):
        return "invalid", STOPPED, body, ()
    if ended.timed_out:
        run = experiment.run
        where = "in the matrix that --save writes" if run.is_of_program else f"of design {run.design.name}"
        return "timed_out", f"{ended} (raise `trial_limit` {where}, or give it less work)", body, ()
    if not ended.ok:
        own = experiment.run.workloads[slot.arm.workload].command and not ended.out_of_memory
        why = why_program_failed(job.log) if own else ""
        return "failed", why or f"the process {ended}{last_line(job.log)}", body, ()
    if record is None:
        return "failed", f"the process ended well but left no readable record{last_line(job.log)}", None, ()
    if record.skipped:
        return "skipped", record.skipped, body, ()
    found = proof_of(experiment, slot, record)
    if found.wrong:
        return "invalid", "; ".join(found.wrong), body, ()
    return "ok", "", body, found.unproven


def stops_of(record: Record | None) -> int:
    """Return how often the process of a trial was stopped and went on later, as far as it could see that itself."""
    found = record.evidence if record else None
    ranks = found.parallel.ranks if found and found.parallel else None
    seen = (found, *(rank.evidence_differs for rank in ranks or ()))
    return max((one.system.stops or 0 for one in seen if one and one.system), default=0)


def proof_of(experiment: Experiment, slot: Slot, record: Record) -> Proof:
    """Hold a record against what the trial was meant to be."""
    run, workload = experiment.run, slot.arm.workload
    environment = read_by(run.environments[slot.arm.runs], run.workloads[workload], run.programs.get(workload, {}))
    found = prove(environment, record.evidence or Evidence())
    if record.bench is None or record.bench.digest != experiment.run.bench_digest:
        found = replace(found, wrong=(*found.wrong, "another version of bench/ ran than the one this run began with"))
    return replace(found, wrong=(*found.wrong, *edited_files(run.workloads[workload], run.programs.get(workload, {}))))


def read_by(environment: Environment, workload: Workload, files: Iterable[str]) -> Environment:
    """Return an environment without doubts about variables that the files of the user's own program name."""
    own = [name for name in environment.unread if near(name) is None]
    named = named_in([Path(workload.files or "") / file for file in files]) if own else set()
    return replace(
        environment, unread=tuple(name for name in environment.unread if name not in named.intersection(own))
    )


def load_record(path: Path) -> tuple[Mapping[str, object], Record] | tuple[None, None]:
    """Read a trial's record, as it was written and as it is understood; None when there is none, or a damaged one.

    One that cannot be read now is a StoreError: nothing may be recorded of its trial.
    """
    try:
        body = json.loads((settled(lambda: _allowed(path), path) or b"").decode())
        return body, read_record(body)
    except (ValueError, RecursionError):  # RecordError is a ValueError
        return None, None


def _allowed(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except (RefusedFileError, PermissionError):
        return None
