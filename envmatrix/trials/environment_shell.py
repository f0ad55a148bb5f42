"""Sessions: an environment prepared for single processes, such as evidence, any command, export."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envmatrix.block.overlay import remove_folder
from envmatrix.engines.base import Engine, Job, Mounts, Prepared, check_architecture, check_quota
from envmatrix.engines.catalog import AUTO, choose_engine
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix import Matrix
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Environment, Library, all_libraries, resolve_environment
from envmatrix.plan.export_lines import memory_policy_command
from envmatrix.system.host import this_host
from envmatrix.system.process import Exit
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import read_bytes
from envmatrix.trials import orphans, own_program
from envmatrix.trials.experiment import check_placement, snapshot_bench
from envmatrix.trials.images import Images, build_places, open_engines
from envmatrix.trials.trial import (
    base_variables,
    environment_variables,
    packages_to_look_up,
    preload_paths,
    process_limits,
    trial_variables,
)

_EVIDENCE_LIMIT_S = 300.0
#: A program that does nothing, to collect evidence.
_IDLE_PROGRAM = Workload.model_validate({"name": "idle", "command": ("python", "-c", ""), "metric": {"wall": True}})


@dataclass(frozen=True)
class Session:
    """A prepared environment on one engine; ``workload`` is the user's own program that a run measured in it."""

    environment: Environment
    engine: Engine
    prepared: Prepared
    bench: Path
    workload: Workload | None = None

    @property
    def preload(self) -> tuple[str, ...]:
        """The content of LD_PRELOAD: absolute paths inside the environment."""
        return preload_paths(self.prepared, self.environment)

    def _job(self, work: Path, argv: tuple[str, ...], limit_s: float, log: Path | None) -> Job:
        mounts = Mounts(work, {"bench": self.bench})
        inner_paths = self.engine.inside(mounts)
        return Job(
            run="session",
            label=work.name,
            prepared=self.prepared,
            argv=argv,
            env={
                **self._variables(base_variables(inner_paths["work"], inner_paths["bench"], self.prepared.python)),
                **packages_to_look_up([self.environment]),
            },
            preload=self.preload,
            mounts=mounts,
            limits=process_limits(self.environment, limit_s),
            log=log,
        )

    def _variables(self, base: dict[str, str]) -> dict[str, str]:
        if self.workload:
            return trial_variables(self.workload, self.environment, base)
        return {**base, **environment_variables(self.environment)}

    def evidence(self) -> dict[str, object]:
        """Return the evidence of a process that only collects it. The Python of a user's program may have no torch."""
        if not self.workload:
            self.prepared.check_torch()
        with temporary_work_folder() as work:
            inner_paths = self.engine.inside(Mounts(work, {"bench": self.bench}))
            record = f"{inner_paths['work']}/record.json"
            arguments: tuple[str, ...] = ("-m", "bench", "evidence", f"--record={record}")
            if self.prepared.without_torch:
                arguments = own_program.command_arguments(
                    _IDLE_PROGRAM, record, self.prepared.python, inner_paths["bench"]
                )
            argv = (self.prepared.python, *arguments)
            log = work.parent / f"{work.name}.log"
            exit_status = self.engine.run(self._job(work, argv, _EVIDENCE_LIMIT_S, log))
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
        return self.engine.run(self._job(Path.cwd(), (*prefix_words, *argv), limit_s, None))


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


def open_session(matrix: Matrix, name: str, engine_name: str, progress: ProgressCallback) -> Session:
    """Resolve and prepare a named environment on one engine ('auto': the first that this machine has)."""
    environment = resolve_environment(matrix, name, this_host().facts())
    return prepare_session(environment, all_libraries(matrix), engine_name, Path(matrix.path), progress)


def prepare_session(
    environment: Environment,
    libraries: tuple[Library, ...],
    engine_name: str,
    matrix: Path,
    progress: ProgressCallback,
    workload: Workload | None = None,
    given: Images | None = None,
) -> Session:
    """Prepare an environment on one engine with the locks next to ``matrix``; ``given`` images are ready already."""
    engine_name = choose_engine(progress) if engine_name == AUTO else engine_name
    check_placement([environment], this_host())
    bench = snapshot_bench()[1]
    engine = open_engines([engine_name], build_places(matrix, bench))[engine_name]
    check_architecture(environment)
    check_quota(engine, environment)
    supplied = (given or {}).get((environment.image_key, engine_name))
    return Session(
        environment, engine, supplied or engine.prepare(environment.image, libraries, progress), bench, workload
    )
