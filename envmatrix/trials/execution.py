"""Run one trial: a fresh process in one environment, and the outcome that its record shows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from envmatrix.block.program_folder import RECORD
from envmatrix.block.program_overlay import remove_folder
from envmatrix.block.turn_gate import FOLDER
from envmatrix.engines.base import Engine, Job, Limits, Mounts, Prepared, library_path
from envmatrix.errors import EngineError, EnvmatrixError, NoTrialError, StoreError
from envmatrix.evidence.evidence_models import Evidence
from envmatrix.evidence.trial_record import Record, read_record
from envmatrix.matrix import Design
from envmatrix.matrix.known_variables import probably_meant_name
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Slot
from envmatrix.plan.environment import Environment
from envmatrix.plan.export_lines import export_lines
from envmatrix.results import Outcome, Trial, trial_of
from envmatrix.system import bench_options
from envmatrix.system.atomic_files import check_free_space, full_disk_errors
from envmatrix.system.host import parse_cpus
from envmatrix.system.process import Exit
from envmatrix.system.reading_with_retries import read_with_retry
from envmatrix.system.regular_files import RefusedFileError, read_bytes
from envmatrix.trials import orphans
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.failure_reason import colon_and_last_line, why_program_failed
from envmatrix.trials.trial_evidence_verification import Verification, verify_evidence
from envmatrix.trials.user_program import invocation
from envmatrix.trials.user_program.file_digests import changed_file_texts
from envmatrix.trials.user_program.passed_variables import starting_variables, words_in_sources

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES_MOUNT = "files"
#: Why a trial that was paused for part of its time does not count.
STOPPED_REASON = "it was paused while it ran (SIGSTOP or a suspended job), so its times are not valid"
#: How often a trial that was stopped runs again before it counts as invalid.
REPEATS = 3


def base_variables(work: str, bench: str, python: str) -> dict[str, str]:
    """Return the variables every trial starts from; nothing else comes from the host.

    The programs next to ``python`` (torchrun, ...) come first on the PATH, as in an activated venv. HOME is the trial's
    own folder, so that ~/.local and dot files of the user have no effect.
    """
    return {
        "PATH": f"{PurePosixPath(python).parent}:{_PATH}",
        "HOME": work,
        "USER": "envmatrix",  # container users are not in passwd; torch needs a name
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 - the one writable place a read-only container has
        "PYTHONPATH": str(PurePosixPath(bench).parent),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def environment_variables(environment: Environment, written: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that an environment sets, without those it declares absent.

    A further variable lists those whose values may be recorded: these, and a workload's ``written`` ones.
    """
    variables = {name: value for name, value in environment.variables.items() if value is not None}
    return {**variables, **bench_options.recorded_names_variable({**(written or {}), **variables})}


def recorded_packages_variable(environments: Iterable[Environment]) -> dict[str, str]:
    """Return the variable that makes a process record the versions of the packages named in checks."""
    return bench_options.recorded_packages_variable(
        claim.path for environment in environments for claim in environment.claims
    )


def trial_variables(workload: Workload, environment: Environment, base: Mapping[str, str]) -> dict[str, str]:
    """Return a trial's variables: the base's, overridden by its program's, then by the environment's."""
    absent_names = {name for name, value in environment.variables.items() if value is None}
    variables = starting_variables(workload, base) if workload.command else base
    return {
        **{name: value for name, value in variables.items() if name not in absent_names},
        **environment_variables(environment, workload.env),
    }


def preload_paths(prepared: Prepared, environment: Environment) -> tuple[str, ...]:
    """Return the absolute paths, inside the environment, for LD_PRELOAD."""
    return tuple(library_path(prepared, key, file) for key, file in environment.preload)


def measured_export_lines(experiment: Experiment, arm: Arm) -> str:
    """Return the shell lines that set up the environment of an arm outside envmatrix."""
    environment = experiment.run.environments[arm.runs]
    prepared = experiment.prepared[environment.image_key, arm.engine]
    return export_lines(environment, preload_paths(prepared, environment), "sh")


def process_limits(environment: Environment, seconds: float, cpus: str | None = None) -> Limits:
    """Return the limits of a process: its time, and the CPUs of the environment (otherwise ``cpus``)."""
    cpu_list, nodes = environment.cpus or cpus, environment.memory_nodes
    return Limits(
        seconds=seconds,
        cpus=parse_cpus(cpu_list) if cpu_list else (),
        memory_nodes=parse_cpus(nodes) if nodes else (),
        cpu_quota=environment.cpu_quota,
    )


def make_limits(design: Design, environment: Environment) -> Limits:
    """Return a trial's limits: the design's, narrowed by the environment's CPUs."""
    return replace(
        process_limits(environment, design.trial_limit, design.cpus),
        memory_bytes=design.memory,
        shm_bytes=design.shm,
        gpus=design.gpus,
    )


def bench_arguments(
    workload: Workload, inner_paths: Mapping[str, str], python: str, *, gate: bool = False, look_s: float | None = None
) -> tuple[str, ...]:
    """Return the arguments that run a workload with ``python -m bench``.

    With ``gate`` it is interleaved; ``look_s`` makes it a steady-state run.
    """
    record = f"{inner_paths['work']}/{RECORD}"
    gate_folder = f"{inner_paths['work']}/{FOLDER}" if gate else ""
    if workload.command:
        return invocation.python_arguments(workload, record, python, inner_paths["bench"], gate_folder)
    options = [f"--record={record}", f"--data-dir={inner_paths['data']}"]
    options += [f"--gate={gate_folder}"] if gate else []
    options += [f"--look={look_s:.1f}"] if look_s is not None else []
    return ("-m", "bench", "run", *options, *bench_options.command_line_arguments(workload.options))


def make_job(experiment: Experiment, slot: Slot, work: Path, *, gate: bool = False) -> Job:
    """Return the job of one slot. It depends only on the experiment and on the engine's paths."""
    arm = slot.arm
    environment = experiment.run.environments[arm.runs]
    engine = experiment.engines[arm.engine]
    prepared = experiment.prepared[environment.image_key, arm.engine]
    workload = experiment.run.workloads[arm.workload]
    files = {_FILES_MOUNT: Path(workload.files)} if workload.command and workload.files else {}
    same_paths = tuple(Path(path) for path in workload.mounts)
    mounts = Mounts(work, {"bench": experiment.bench, "data": experiment.data, **files}, same_paths)
    inner_paths = engine.inside(mounts)
    base = base_variables(inner_paths["work"], inner_paths["bench"], prepared.python)
    spans_nodes = bench_options.node_count(workload.options) > 1
    return Job(
        run=experiment.run.name,
        label=slot.trial,
        prepared=prepared,
        argv=(prepared.python, *bench_arguments(workload, inner_paths, prepared.python, gate=gate, look_s=slot.look_s)),
        env={
            **trial_variables(workload, environment, base),
            **recorded_packages_variable(experiment.run.environments.values()),
            "ENVMATRIX_PAD": "x" * slot.padding,
        },
        preload=preload_paths(prepared, environment),
        mounts=mounts,
        limits=replace(make_limits(experiment.run.design, environment), network=spans_nodes),
        log=experiment.folder.logs / f"{slot.trial}.log",
    )


def program_folder(experiment: Experiment, slot: Slot, job: Job) -> tuple[Path, str, str] | None:
    """Return the folder of the user's program, its path inside the environment, and its metric file.

    None if there is no such program.
    """
    if _FILES_MOUNT not in job.mounts.read:
        return None
    inner_path = experiment.engines[slot.arm.engine].inside(job.mounts)[_FILES_MOUNT]
    metric_file = invocation.metric_file(experiment.run.workloads[slot.arm.workload])
    return job.mounts.read[_FILES_MOUNT], inner_path, metric_file


def make_job_in_new_folder(experiment: Experiment, slot: Slot, *, gate: bool = False) -> Job:
    """Return the job of one slot on this machine: in an empty work folder, with its program's files and its mark."""
    work = orphans.work_folder() / experiment.run.name / slot.trial
    remove_folder(work)
    with full_disk_errors(work):
        work.mkdir(parents=True)
        job = make_job(experiment, slot, work, gate=gate)
        job = replace(job, env={**job.env, **orphans.trial_mark(experiment.run.name, slot)})
        program = program_folder(experiment, slot, job)
        return invocation.place_program_files(experiment.engines[slot.arm.engine], job, *program) if program else job


def run_trial(experiment: Experiment, slot: Slot) -> Trial:
    """Run one slot to its end. A failed trial is returned with its reason, never raised.

    Raises NoTrialError if its process was not started, or its engine or image disappeared.
    """
    reason = experiment.run.skipped.get(slot.arm.name)
    if reason:
        return trial_of(slot, "skipped", reason)
    orphan_count = orphans.end_processes()
    started, began = time.time(), time.monotonic()
    try:
        job, engine = make_job_in_new_folder(experiment, slot), experiment.engines[slot.arm.engine]
        check_image_present(engine, job)
        exit_status = _run_job(engine, job)
        trial = make_finished_trial(experiment, slot, exit_status, job, started=started)
        return replace(trial, ended_before=orphan_count)
    except (StoreError, NoTrialError):
        raise
    except EnvmatrixError as error:
        return make_unstarted_trial(slot, error, started=started, wall_s=time.monotonic() - began)
    finally:
        remove_folder(orphans.work_folder() / experiment.run.name / slot.trial)


def check_image_present(engine: Engine, job: Job) -> None:
    """Raise NoTrialError if an image is gone, was replaced (even by a working one), or cannot be checked."""
    try:
        is_present = engine.holds(job.prepared)
    except EngineError as error:
        raise NoTrialError(error.message, remedy=error.remedy) from error
    if not is_present:
        raise NoTrialError(f"image {job.prepared.image} disappeared or was replaced before the trial started")


def _run_job(engine: Engine, job: Job) -> Exit:
    exit_status = engine.run(job)
    if not exit_status.ok and not engine.holds(job.prepared):
        raise NoTrialError(f"image {job.prepared.image} disappeared during the trial")
    return exit_status


def make_unstarted_trial(
    slot: Slot, error: EnvmatrixError, *, started: float | None = None, wall_s: float = 0.0
) -> Trial:
    """Return the failed trial of a process that could not be started in this environment."""
    return trial_of(slot, "failed", str(error), wall_s=wall_s, started=time.time() if started is None else started)


def make_finished_trial(
    experiment: Experiment, slot: Slot, exit_status: Exit, job: Job, *, started: float, node: str = ""
) -> Trial:
    """Return the trial of a process that has ended, here or on ``node``, from its work folder.

    Raises StoreError if it failed and the disk of its log or of its work folder is full: that may be the cause.
    """
    outcome, reason, document, unproven = classify_outcome(experiment, slot, exit_status, job)
    if outcome == "failed" and job.log:
        for folder in (job.log.parent, job.mounts.work):
            check_free_space(folder)
    trial = trial_of(slot, outcome, reason, wall_s=exit_status.wall_s, started=started, node=node, document=document)
    return replace(trial, unproven=unproven)


def classify_outcome(
    experiment: Experiment, slot: Slot, exit_status: Exit, job: Job
) -> tuple[Outcome, str, Mapping[str, object] | None, tuple[str, ...]]:
    """Return outcome, reason, record and unverified settings of a trial, from its exit, record and evidence."""
    body, record = load_record(job.mounts.work / RECORD)
    if exit_status.stops or count_stops(record):
        return "invalid", STOPPED_REASON, body, ()
    if exit_status.timed_out:
        run = experiment.run
        location = "in the matrix that --save writes" if run.has_generated_matrix else f"of design {run.design.name}"
        return "timed_out", f"{exit_status} (raise `trial_limit` {location}, or make its work smaller)", body, ()
    if not exit_status.ok:
        is_own_program = experiment.run.workloads[slot.arm.workload].command and not exit_status.out_of_memory
        reason = why_program_failed(job.log) if is_own_program else ""
        return "failed", reason or f"the process {exit_status}{colon_and_last_line(job.log)}", body, ()
    if record is None:
        reason = (
            f"the process ended without an error, but its record is missing or unreadable{colon_and_last_line(job.log)}"
        )
        return "failed", reason, None, ()
    if record.skipped:
        return "skipped", record.skipped, body, ()
    verification = verify_trial(experiment, slot, record)
    if verification.wrong:
        return "invalid", "; ".join(verification.wrong), body, ()
    return "ok", "", body, verification.unproven


def count_stops(record: Record | None) -> int:
    """Return how often a trial's process was stopped and continued, as far as the process noticed."""
    evidence = record.evidence if record else None
    ranks = evidence.parallel.ranks if evidence and evidence.parallel else None
    evidence_parts = (evidence, *(rank.evidence_differs for rank in ranks or ()))
    return max((part.system.stops or 0 for part in evidence_parts if part and part.system), default=0)


def verify_trial(experiment: Experiment, slot: Slot, record: Record) -> Verification:
    """Compare a record with the trial's environment, benchmark version and program files."""
    run, workload = experiment.run, experiment.run.workloads[slot.arm.workload]
    files = run.programs.get(workload.name, {})
    environment = without_warnings_for_mentioned_variables(run.environments[slot.arm.runs], workload, files)
    verification = verify_evidence(environment, record.evidence or Evidence())
    wrong = [*verification.wrong]
    if record.bench is None or record.bench.digest != run.bench_digest:
        wrong.append("the trial used another version of bench/ than this run started with")
    return replace(verification, wrong=(*wrong, *changed_file_texts(workload, files)))


def without_warnings_for_mentioned_variables(
    environment: Environment, workload: Workload, files: Iterable[str]
) -> Environment:
    """Return an environment without warnings for variables that the files of the user's own program mention."""
    unexplained = [name for name in environment.unread if probably_meant_name(name) is None]
    mentioned_names = words_in_sources([Path(workload.files or "") / file for file in files]) if unexplained else set()
    unread = [name for name in environment.unread if name not in mentioned_names.intersection(unexplained)]
    return replace(environment, unread=tuple(unread))


def load_record(path: Path) -> tuple[Mapping[str, object], Record] | tuple[None, None]:
    """Return a trial's record as written and as parsed; None, None if it is missing or damaged.

    Raises StoreError if it cannot be read now: then its trial must not be recorded.
    """

    def read() -> bytes | None:
        try:
            return read_bytes(path)
        except (RefusedFileError, PermissionError):
            return None

    try:
        body = json.loads((read_with_retry(read, path) or b"").decode())
        return body, read_record(body)
    except (ValueError, RecursionError):  # RecordError is a ValueError
        return None, None
