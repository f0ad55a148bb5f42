"""One process in an environment on another machine: a single trial of a launcher, in a temporary results folder."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from envmatrix.api.matrix_and_run_lookup import PathLike
from envmatrix.api.user_program.program_options import ProgramPlace, without_secrets_and_host_paths
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EnvmatrixError, SkipEnvironmentError
from envmatrix.launchers.base import LimitsBlocks
from envmatrix.launchers.catalog import LAUNCHERS, check_options, find_trial_host
from envmatrix.matrix.model import Design, Workload
from envmatrix.plan import Arm, Slot
from envmatrix.results import Run, RunFolder, Trial
from envmatrix.runner.loop import run as run_experiment
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.system.host import Host, this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.data_preparation import data_folder
from envmatrix.trials.environment_for_commands import Session
from envmatrix.trials.experiment_setup import Experiment, snapshot_bench
from envmatrix.trials.failure_reason import split_program_log
from envmatrix.trials.feasibility import arms_that_cannot_run
from envmatrix.trials.user_program.mounts import folders_to_mount
from envmatrix.version import __version__

_NAME = "session"


@dataclass(frozen=True)
class SingleTrial:
    """A session's trial that has ended, the program's output, and its exit code (None: it did not exit)."""

    session: Session
    trial: Trial
    output: str
    exit_code: int | None

    def evidence_or_raise(self) -> dict[str, object]:
        """Return its evidence. Raises EnvmatrixError with the end of the output if there is none."""
        evidence = (self.trial.document or {}).get("evidence")
        if not isinstance(evidence, dict):
            raise self.error()
        return evidence

    def error(self) -> EnvmatrixError:
        """Return an error with the trial's reason and the end of the output."""
        text = f"environment {self.trial.environment}: {self.trial.reason}\n{self.output.strip()[-2000:]}"
        return EnvmatrixError(text.rstrip())


def find_node(engine: str, place: ProgramPlace, limit_s: float, progress: ProgressCallback) -> Host:
    """Return the machine on which ``place`` runs a process. Raises an error for anything that its launcher cannot do.

    ``limit_s``: the seconds that the process may take.
    """
    kind, design = LAUNCHERS.make(place.launcher), _design(engine, place.gpus, limit_s)
    check_options(kind, place.launcher_options)
    engines = [find_engine(engine)]
    host = find_trial_host(kind, design, place.launcher_options, engines, {_NAME: 1}, progress)
    if isinstance(kind, LimitsBlocks):
        kind.check_block(design, place.launcher_options, 1, 1, 0)
    return host or this_host()


def run_single_trial(
    session: Session, command: tuple[str, ...], place: ProgramPlace, host: Host, limit_s: float, results: PathLike,
    progress: ProgressCallback, *, in_own_folder: bool = False,
) -> SingleTrial:  # fmt: skip
    """Run ``command`` in a session's environment on ``host``, as the only trial of a run that is deleted afterwards.

    An empty ``command`` imports PyTorch, if there is one. ``in_own_folder``: an engine that shares files runs it in the
    current folder itself, where it can write; otherwise it runs as in any trial. Raises KeyboardInterrupt, with its job
    cancelled, SkipEnvironmentError and EnvmatrixError.
    """
    Path(results).mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".session-", dir=results)).resolve()
    try:
        workload = _workload(session, command, place, in_own_folder=in_own_folder)
        experiment = _experiment(session, workload, place, host, limit_s, temporary / _NAME)
        launcher = LAUNCHERS.make(place.launcher).open(experiment, progress, lambda _: True)
        observer = _Observer(progress)
        try:
            ending = run_experiment(experiment, launcher, observer, silent)
        finally:
            experiment.folder.unlock()
        if ending.interrupted:
            raise KeyboardInterrupt
        if observer.ended is None:
            raise EnvmatrixError(f"environment {session.environment.name}: its job ended before its process did")
        if observer.ended.outcome == "skipped":
            raise SkipEnvironmentError(observer.ended.reason)
        output, code = split_program_log(experiment.folder.logs / f"{observer.ended.trial}.log")
        return SingleTrial(session, observer.ended, output, 0 if observer.ended.document else code)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Observer:
    """Keeps the trial, and reports where it ran."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self.ended: Trial | None = None

    def trial_begins(self, slot: Slot, left_s: float, together: int = 1) -> None:
        """Report the start."""
        self._progress(f"{slot.arm.environment}: the process has started")

    def trial_ended(self, trial: Trial) -> None:
        """Keep the trial."""
        self.ended = trial
        if trial.node:
            self._progress(f"{trial.environment}: it ran on {trial.node}")

    def block_ended(self, block: int, estimate: RunningEstimate, left_s: float, left: float) -> None:
        """Do nothing: there is one block."""


def _design(engine: str, gpus: tuple[str, ...], limit_s: float) -> Design:
    return Design.model_validate({
        "name": _NAME, "workloads": _NAME, "engines": engine, "gpus": gpus, "schedule": "sequential",
        "max_blocks": 1, "trial_limit": limit_s, "budget": limit_s,
    })  # fmt: skip


def _workload(session: Session, command: tuple[str, ...], place: ProgramPlace, *, in_own_folder: bool) -> Workload:
    """Return the command as a workload, with the variables of the program that a run measured, if any."""
    program, shares_files, folder = session.workload, session.engine.shares_files, Path.cwd()
    body = {"name": _NAME, "metric": {"wall": True}, "files": ""}
    if program:
        names = tuple(without_secrets_and_host_paths(program.pass_env, place))
        body |= {"env": program.env, "pass_env": names, "home": program.home if shares_files else "trial"}
    if not command:
        return Workload.model_validate({**body, "command": ("python", "-c", _imports(session))})
    if in_own_folder and shares_files:
        argv = (session.prepared.python, *command[1:]) if command[0] in ("python", "python3") else command
        return Workload.model_validate({**body, "command": ("sh", "-c", 'cd "$0" && exec "$@"', str(folder), *argv)})
    mounts = () if shares_files else folders_to_mount(folder, command, body.get("pass_env", ()))
    return Workload.model_validate({**body, "command": command, "files": str(folder), "mounts": mounts})


def _imports(session: Session) -> str:
    """Return the code of a process that only collects evidence; the Python of a user's program may have no PyTorch."""
    if not session.workload:
        session.prepared.check_torch()
    return "" if session.prepared.without_torch else "import torch"


def _experiment(
    session: Session, workload: Workload, place: ProgramPlace, host: Host, limit_s: float, path: Path
) -> Experiment:
    """Return the experiment of one trial of the session's environment, with its folder."""
    environment, engine = session.environment, session.engine
    arm = Arm.of(environment.name, environment.name, _NAME, engine.name, None)
    by_name, prepared = {environment.name: environment}, {(environment.image_key, engine.name): session.prepared}
    run = Run(
        name=_NAME, created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        design=_design(engine.name, place.gpus, limit_s), arms=(arm,), matrix_digest="", host=host,
        bench_digest=snapshot_bench()[0], versions={"envmatrix": __version__}, environments=by_name,
        workloads={_NAME: workload}, launcher=place.launcher, launcher_options=dict(place.launcher_options),
        skipped=arms_that_cannot_run((arm,), by_name, {_NAME: workload}, prepared, place.launcher),
    )  # fmt: skip
    folder = RunFolder(path)
    folder.create(run, "", host_names=True)
    return Experiment(run, folder, {engine.name: engine}, prepared, session.bench, data_folder())
