"""Sessions: an environment prepared for single processes, such as evidence, any command, export."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.block.program_overlay import remove_folder
from envmatrix.engines.base import Engine, Job, Mounts, Prepared, check_architecture, check_quota
from envmatrix.engines.catalog import AUTO, choose_engine
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.plan.export_lines import memory_policy_command
from envmatrix.system.host import Host, this_host
from envmatrix.system.process import Exit
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import read_bytes
from envmatrix.trials import orphans
from envmatrix.trials.execution import (
    base_variables,
    environment_variables,
    preload_paths,
    process_limits,
    recorded_packages_variable,
    trial_variables,
)
from envmatrix.trials.experiment_setup import check_placement, snapshot_bench
from envmatrix.trials.images import Images, build_places, libraries_for_images, open_engines
from envmatrix.trials.user_program import invocation
from envmatrix.trials.user_program.mounts import folders_to_mount

EVIDENCE_LIMIT_S = 300.0
PROGRAM_LIMIT_S = 4 * 3600.0
#: A program that does nothing, to collect evidence.
_IDLE_PROGRAM = Workload.model_validate({"name": "idle", "command": ("python", "-c", ""), "metric": {"wall": True}})


@dataclass(frozen=True)
class Session:
    """A prepared environment on one engine; ``workload`` is the user's own program that a run measured in it.

    ``gpus`` are those that its containers get.
    """

    environment: Environment
    engine: Engine
    prepared: Prepared
    bench: Path
    workload: Workload | None = None
    gpus: tuple[str, ...] = ()

    @property
    def preload(self) -> tuple[str, ...]:
        """The content of LD_PRELOAD: absolute paths inside the environment."""
        return preload_paths(self.prepared, self.environment)

    def _mounts(self, work: Path, command: tuple[str, ...]) -> Mounts:
        """Return the folders of a process; a command in a container sees the folders that it names too."""
        names = self.workload.pass_env if self.workload else ()
        folders = folders_to_mount(Path.cwd(), command, names) if command and not self.engine.shares_files else ()
        own = {"files": Path.cwd()} if command else {}
        return Mounts(work, {"bench": self.bench, **own}, tuple(map(Path, folders)))

    def _job(self, mounts: Mounts, argv: tuple[str, ...], limit_s: float, log: Path | None) -> Job:
        inner_paths = self.engine.inside(mounts)
        base = base_variables(inner_paths["work"], inner_paths["bench"], self.prepared.python)
        own_variables = (
            trial_variables(self.workload, self.environment, base)
            if self.workload
            else {**base, **environment_variables(self.environment)}
        )
        return Job(
            run="session",
            label=mounts.work.name,
            prepared=self.prepared,
            argv=argv,
            env={**own_variables, **recorded_packages_variable([self.environment])},
            preload=self.preload,
            mounts=mounts,
            limits=replace(process_limits(self.environment, limit_s), gpus=self.gpus),
            log=log,
        )

    def evidence(self, command: tuple[str, ...] = ()) -> dict[str, object]:
        """Return the evidence of ``command``, or of a process that only collects it.

        The Python of a user's program may have no torch.
        """
        if not (self.workload or command):
            self.prepared.check_torch()
        with temporary_work_folder() as work:
            mounts = self._mounts(work, command)
            inner_paths = self.engine.inside(mounts)
            record = f"{inner_paths['work']}/record.json"
            arguments: tuple[str, ...] = ("-m", "bench", "evidence", f"--record={record}")
            if command or self.prepared.without_torch:
                program = _IDLE_PROGRAM.model_copy(update={"command": command} if command else {})
                arguments = invocation.python_arguments(program, record, self.prepared.python, inner_paths["bench"])
            log = work.parent / f"{work.name}.log"
            limit_s = PROGRAM_LIMIT_S if command else EVIDENCE_LIMIT_S
            job = self._job(mounts, (self.prepared.python, *arguments), limit_s, log)
            if command:
                job = invocation.place_program_files(self.engine, job, Path.cwd(), inner_paths["files"])
            exit_status = self.engine.run(job)
            output = log.read_text(errors="replace") if log.exists() else ""
            log.unlink(missing_ok=True)
            if not exit_status.ok or not (work / "record.json").exists():
                raise EnvmatrixError(
                    f"environment {self.environment.name}: the process {exit_status}\n{output.strip()[-2000:]}"
                )
            body: dict[str, dict[str, object] | None] = json.loads(read_bytes(work / "record.json").decode())
            return dict(body.get("evidence") or {})

    def execute(self, command: tuple[str, ...], limit_s: float) -> Exit:
        """Run ``command`` in the current folder and return its exit.

        It uses our stdin, stdout and stderr (no stdin in Docker); ``python`` means the environment's own.
        """
        argv = (self.prepared.python, *command[1:]) if command[0] in ("python", "python3") else command
        prefix_words = memory_policy_command(self.environment, self.prepared.python)
        mounts = self._mounts(Path.cwd(), command)
        return self.engine.run(self._job(mounts, (*prefix_words, *argv), limit_s, None))


@contextmanager
def temporary_work_folder() -> Iterator[Path]:
    """Yield a temporary work folder."""
    folder = orphans.work_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=orphans.session_prefix(), dir=folder))
    try:
        yield path
    finally:
        remove_folder(path)


def prepare_session(
    environment: Environment,
    libraries: tuple[Library, ...],
    engine_name: str,
    matrix: Path,
    progress: ProgressCallback,
    workload: Workload | None = None,
    given: Images | None = None,
    image: str = "",
    host: Host | None = None,
) -> Session:
    """Prepare an environment on one engine ('auto': the first that this machine has).

    Its locks are next to ``matrix``; ``given`` images are ready already. ``image``: a ready image to use instead of its
    own. ``host``: where its processes will run (None: here).
    """
    if image:
        environment = replace(environment, image=Image("chosen", ready=image))
        preloaded = {key for key, _ in environment.preload}
        libraries = tuple(library for library in libraries if library.key in preloaded)
    engine_name = choose_engine(progress) if engine_name == AUTO else engine_name
    check_placement([environment], host or this_host())
    bench = snapshot_bench()[1]
    engine = open_engines([engine_name], build_places(matrix, bench))[engine_name]
    check_architecture(environment)
    check_quota(engine, environment)
    supplied = (given or {}).get((environment.image_key, engine_name))
    held = libraries_for_images(engine, libraries, [environment])
    return Session(environment, engine, supplied or engine.prepare(environment.image, held, progress), bench, workload)
