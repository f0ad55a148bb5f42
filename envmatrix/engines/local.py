"""Engine ``local``: processes in a venv or an existing Python, without the host's environment variables."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from envmatrix.build import modules
from envmatrix.build.cache import json_digest
from envmatrix.build.images.file_listing import listing_argv, store_listing
from envmatrix.build.libraries import LibraryBuilder, LibraryFolders, loader_cache
from envmatrix.build.lockfile import Section
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python import conda
from envmatrix.build.python.bench_bytecode import compile_bench
from envmatrix.build.python.interpreters import Python, find_python_cached, inspect_interpreter
from envmatrix.build.python.source_builds import check_uv, fetch_wheels
from envmatrix.build.python.venvs import build_overlay, build_venv, inspect_base_python, site_packages
from envmatrix.build.python.wheelhouse import EnvironmentWheels
from envmatrix.engines import build_record as records
from envmatrix.engines.base import CommandLine, Engine, Job, Mounts, Prepared, log_of
from envmatrix.engines.process_limits import CgroupConfined, Confinement, cgroup_name, plain_place, prepare_confinement
from envmatrix.errors import EngineError, EnvmatrixError, SkipEnvironmentError
from envmatrix.plan.environment import Image, Library
from envmatrix.plan.export_lines import posix_quote
from envmatrix.plan.export_lines import program_command as words_of
from envmatrix.system.cuda_driver import driver_search_path
from envmatrix.system.host import has_gpu
from envmatrix.system.process import Exit, Order, SupervisedProcess, log_or_inherited_streams, parse_last_json, run
from envmatrix.system.progress import ProgressCallback

_PATH = "/usr/bin:/bin"
#: Without the current folder, which may be a checkout of PyTorch or have a json.py.
_TORCH_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); import json, torch; "
    "print(json.dumps([torch.__version__, torch.__file__]))"
)
_LISTING_S = 600.0


@dataclass(frozen=True)
class LocalEngine(CgroupConfined, Engine):
    """Runs trials as plain processes on this machine."""

    places: BuildPaths
    name: str = "local"
    preference = 1
    shares_files = True
    starts_anywhere = True

    @property
    def isolation(self) -> str:
        """A trial is not isolated."""
        return (
            f"trials are processes of {('root' if os.geteuid() == 0 else 'yours')} and can do everything that you can"
        )

    def unavailable(self) -> str | None:
        """Return why this engine cannot be used here; None if it can."""
        return None if sys.platform == "linux" else "the local engine needs Linux (affinity, LD_PRELOAD)"

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build or reuse ``image`` and its libraries; an unchanged one is found by its build record."""
        if image.ready:
            raise SkipEnvironmentError(
                f"image {image.name} is {image.ready}, which only a container can use",
                remedy="use `--engine docker` or `--engine apptainer`",
            )
        if image.suite and not image.requirements and not image.on_host:
            raise SkipEnvironmentError(
                f"image {image.name} consists of Debian {image.suite}'s packages, which only a container can use",
                remedy="use `--engine docker` or `--engine apptainer`",
            )
        if image.conda:
            conda_image, conda_facts = conda.ensure_conda_image(self.places.cache, image, progress)
            conda_prepared = self.prepare(conda_image, libraries, progress)
            return replace(conda_prepared, facts={**conda_prepared.facts, **conda_facts})
        if image.modules:  # not cached, because modules may change
            return self._ready(self._prepare_with_modules(image, libraries, progress))
        cache, interpreter = self.places.cache, image.interpreter
        python = _find_interpreter(interpreter) if interpreter else find_python_cached(cache, image.python)
        base_digest = inspect_base_python(python).digest if interpreter else ""  # it may have been upgraded
        build_record = records.record_file(self.places, self.name, image, libraries, asdict(python), base_digest)
        prepared = records.prepared_from(cache.read_json(build_record))
        if prepared is None or not self.holds(prepared):
            if prepared and Path(prepared.reference).is_relative_to(cache.root):
                shutil.rmtree(prepared.reference, ignore_errors=True)  # an incomplete venv is unusable
            prepared = self._build(image, libraries, python, progress)
            if not prepared.missing and not prepared.without_torch:  # a missing one may be installed later
                cache.write(build_record, json.dumps(records.prepared_fields(prepared)))
        return self._ready(prepared)

    def _ready(self, prepared: Prepared) -> Prepared:
        """Return an image with what this machine's loader finds, and compile the benchmark for its Python."""
        compile_bench(self.places, prepared.python, prepared.facts.get("python", ""))
        return replace(prepared, loader=frozenset(loader_cache()))

    def _prepare_with_modules(
        self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback
    ) -> Prepared:
        loaded = modules.load_modules(image.modules)
        path = [*filter(None, [loaded.variables.get("PATH")]), _PATH]
        variables = {**loaded.variables, "PATH": ":".join(path), "LC_ALL": "C.UTF-8"}
        python = _find_interpreter(image.interpreter or "python3", variables)
        prepared = self._build(image, libraries, python, progress, variables)
        facts = {**prepared.facts, "modules": " ".join(loaded.names), "modules_digest": loaded.digest}
        return replace(prepared, facts=facts, variables=loaded.variables)

    def _build(
        self, image: Image, libraries: tuple[Library, ...], python: Python, progress: ProgressCallback,
        variables: Mapping[str, str] | None = None,
    ) -> Prepared:  # fmt: skip
        locks = Locks(self.places.locks, self.places.cache, progress)
        without = ""
        if image.on_host:
            reference, program, facts = self._given_python(image, python, locks)
            torch, without = self._find_torch(program, image, facts, variables)
            facts = {**facts, **torch}
        else:
            reference, program, facts = self._locked_venv(image, python, locks)
        host = python if not image.on_host else find_python_cached(locks.cache, None)
        folders: LibraryFolders = LibraryBuilder(locks, host).build(libraries, image)
        facts = {**facts, "python": python.version, **folders.facts}
        return Prepared(
            image.name, self.name, reference, program, folders.folders, facts, folders.missing, without_torch=without
        )

    def _find_torch(
        self, program: str, image: Image, facts: Mapping[str, str], variables: Mapping[str, str] | None
    ) -> tuple[dict[str, str], str]:
        """Return the torch version of a given Python, cached because importing torch takes seconds."""
        if image.modules:  # not cached, because modules may change
            return _import_torch(program, image, variables or {})
        key = json_digest(program, facts.get("over_packages", ""), facts.get("lock_digest", ""))
        file = self.places.cache.root / "prepared" / f"torch-{key[:24]}.json"
        record = {name: str(value) for name, value in (self.places.cache.read_json(file) or {}).items()}
        if Path(record.get("torch_file", "")).is_file():
            return record, ""
        torch, without = _import_torch(program, image, {"PATH": _PATH, "LC_ALL": "C.UTF-8"})
        if torch:
            self.places.cache.write(file, json.dumps(torch))
        return torch, without

    def _given_python(self, image: Image, python: Python, locks: Locks) -> tuple[str, str, dict[str, str]]:
        """Return an existing Python, or a venv over it with its missing requirements."""
        if image.modules:
            return python.path, python.path, {}
        base = inspect_base_python(python)
        had = {f"package conda:{name}": version for name, version in base.conda}
        if not image.requirements:
            return python.path, python.path, {"over_packages": base.digest, **had}
        wheels, facts = _fetch_locked(image, python, locks.overlay_lock(image, python, base), locks)
        folder = build_overlay(locks.cache, python, base, wheels, locks.progress)
        facts = {"over": python.path, "over_packages": base.digest, **had, **facts}
        return str(folder), str(folder / "bin" / "python"), facts

    def _locked_venv(self, image: Image, python: Python, locks: Locks) -> tuple[str, str, dict[str, str]]:
        wheels, facts = _fetch_locked(image, python, locks.image_lock(image, python), locks)
        folder = build_venv(locks.cache, python, wheels, locks.progress)
        program = str(folder / "bin" / "python")
        listing = run(listing_argv(program, str(site_packages(folder))), limit_s=_LISTING_S).stdout
        files_digest = store_listing(self.places.cache, listing)
        return str(folder), program, {**facts, "files_digest": files_digest, **wheels.facts}

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        """Return host paths: a local process sees all files."""
        return {"work": str(mounts.work), **{name: str(path) for name, path in mounts.read.items()}}

    def holds(self, prepared: Prepared) -> bool:
        """Return whether the venv and the libraries still exist."""
        paths = [prepared.reference, prepared.python, *prepared.libraries.values()]
        return all(Path(path).exists() for path in paths)

    def run(self, job: Job) -> Exit:
        """Run ``job`` with exactly its variables; LD_PRELOAD is set only in the child process."""
        with self.started(job) as running:
            return running.exit()

    def started(self, job: Job) -> AbstractContextManager[GuardedJob]:
        """Start ``job``."""
        return guarded_job(job, job.argv, _variables(job))

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as a command; its memory limit is RLIMIT_DATA, as ``run`` uses without cgroups."""
        needs = (Path(job.prepared.python), *(Path(path) for path in job.preload if "/" in path))
        return CommandLine(job.argv, _variables(job), job.mounts.work, place=plain_place(job.limits), needs=needs)

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start a program with the venv's Python; only the program gets LD_PRELOAD."""
        loaded = variables.get("LD_PRELOAD")
        start = f"env LD_PRELOAD={posix_quote(loaded)} " if loaded else ""
        brought = prepared.facts.get("modules", "").split()
        origin = "comes with modules, which" if brought else "is a venv; it"
        return [
            f"# The environment {origin} must be on a file system that the node sees.",
            *(f"module load {posix_quote(name)}" for name in brought),
            *(f"unset {name}" for name, value in variables.items() if value is None),
            *(f"export {n}={posix_quote(v)}" for n, v in variables.items() if v is not None and n != "LD_PRELOAD"),
            f"exec {placement}{start}{words_of(prepared.python, program)}",
        ]


class GuardedJob(SupervisedProcess):
    """A job started by a supervisor, directly or through a container's client, whose status 128 + N means signal N."""

    def __init__(self, order: Order, log: IO[bytes] | None, confinement: Confinement, *, has_client: bool) -> None:
        super().__init__(order, log_or_inherited_streams(log))
        self.confinement = confinement
        self.has_client = has_client

    def exit(self) -> Exit:
        """Wait until it ends, and return its exit."""
        ended = self.answer()
        code = 128 - ended.code if self.has_client and ended.code > 128 else ended.code
        return replace(ended, code=code, out_of_memory=not ended.ok and self.confinement.ran_out())


@contextlib.contextmanager
def guarded_job(
    job: Job, argv: Sequence[str], env: Mapping[str, str], *, has_client: bool = False
) -> Iterator[GuardedJob]:
    """Start the command of a job with the placement and memory of its limits."""
    with log_of(job) as log, prepare_confinement(cgroup_name(job), job.limits) as confinement:
        folder = job.folder or job.mounts.work
        order = Order(argv, env, folder, job.limits.seconds, confinement.place, overlay=job.overlay)
        running = GuardedJob(order, log, confinement, has_client=has_client)
        with running:
            yield running


def _fetch_locked(
    image: Image, python: Python, section: Section, locks: Locks
) -> tuple[EnvironmentWheels, dict[str, str]]:
    """Return the wheels of a lock and the facts about it."""
    check_uv(locks.cache, section.packages)
    wheels = fetch_wheels(locks.cache, image, section, python, locks.progress)
    packages = {f"package {pin.name}": pin.version for pin in section.packages}
    return wheels, {"lock": section.lock.name, "lock_digest": section.digest, **packages}


def _variables(job: Job) -> dict[str, str]:
    variables = modules.merge_module_variables(job.prepared.variables, job.env)
    driver = "" if "libcuda.so.1" in (job.prepared.loader or ()) else driver_search_path()
    if driver and driver not in variables.get("LD_LIBRARY_PATH", ""):
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, (variables.get("LD_LIBRARY_PATH"), driver)))
    return {**variables, **preload_variable(job.preload)}


def preload_variable(preload: tuple[str, ...]) -> dict[str, str]:
    """Return LD_PRELOAD for these libraries in order; the loader splits it at whitespace and colons."""
    bad_path = next((path for path in preload if re.search(r"[\s:]", path)), None)
    if bad_path:
        raise EngineError(
            f"{bad_path!r} cannot be preloaded: the loader splits LD_PRELOAD at blanks and colons (ld.so(8))",
            remedy="set ENVMATRIX_CACHE to a folder without blanks and colons in its path",
        )
    return {"LD_PRELOAD": ":".join(preload)} if preload else {}


def _find_interpreter(interpreter: str, variables: Mapping[str, str] | None = None) -> Python:
    expanded = os.path.expanduser(interpreter)  # noqa: PTH111 - a Path would look for ./python on PATH
    path = shutil.which(expanded, path=variables["PATH"] if variables else None)
    try:
        return inspect_interpreter(path or expanded, variables)
    except EnvmatrixError as error:
        name_it = "name the module that provides it (`modules:`), or write its full path in matrix.yaml"
        raise SkipEnvironmentError(
            f"interpreter: {interpreter} is not a Python that starts on this machine: {error.message}",
            remedy=f"{error.remedy}; or {name_it}" if error.remedy else name_it,
        ) from error


def _import_torch(python: str, image: Image, variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the given Python's torch version in a trial's empty environment, or why it has none."""
    result = run([python, "-c", _TORCH_CODE], limit_s=300.0, env=variables)
    subject = f"modules: {' '.join(image.modules)}" if image.modules else f"interpreter: {image.interpreter}"
    try:
        version, file = parse_last_json(result.stdout)
    except ValueError:
        if "libcuda" in result.stderr and not has_gpu():
            reason = "has a PyTorch for CUDA, and this machine has no GPU"
            remedy = "use a machine with a GPU (/dev/nvidia0), or an interpreter with a PyTorch for the CPU"
        else:
            reason = f"cannot import torch: {result.last_words(1)}"
            remedy = f"install PyTorch for it (`{python} -m pip install torch`), or name another interpreter"
        return {}, f"{subject} ({python}) {reason}\n  -> {remedy}"
    return {"torch": version, "torch_file": file}, ""
