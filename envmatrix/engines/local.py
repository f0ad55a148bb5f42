"""Engine ``local``: a process of a venv (or of a Python that is already there), with an empty host environment."""

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

from envmatrix.build import conda, modules
from envmatrix.build.cache import digest_of
from envmatrix.build.file_listing import keep_listing, listing_argv
from envmatrix.build.libraries import Folders, LibraryBuilder, sections_digest
from envmatrix.build.locks import Locks
from envmatrix.build.overlays import base_of, build_overlay
from envmatrix.build.paths import Places
from envmatrix.build.pythons import Python, ask, remembered_python
from envmatrix.build.source_builds import check_uv, wheels_of
from envmatrix.build.system_libraries import known_to_loader
from envmatrix.build.venvs import build_venv, packages_of
from envmatrix.engines.base import CommandLine, Engine, Job, Mounts, Prepared, log_of
from envmatrix.engines.build_record import inputs_digest, prepared_from
from envmatrix.engines.confinement import (
    Confinement,
    InGroups,
    confined,
    leftover_groups,
    plain_place,
    remove_group,
)
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.plan.environment import Image, Library
from envmatrix.plan.export import quoted
from envmatrix.plan.export import started as words_of
from envmatrix.system.host import has_gpu
from envmatrix.system.process import Exit, Guarded, Order, run, said_json, started
from envmatrix.system.progress import ProgressCallback

_PATH = "/usr/bin:/bin"
_TORCH = "import json, torch; print(json.dumps([torch.__version__, torch.__file__]))"
_GROUP = "envmatrix-"
_LISTING_S = 600.0


@dataclass(frozen=True)
class LocalEngine(InGroups, Engine):
    """Runs trials as plain processes of this machine."""

    places: Places
    name: str = "local"
    preference = 1
    shares_files = True
    starts_anywhere = True

    @property
    def isolation(self) -> str:
        """A trial is kept from nothing."""
        return f"trials are processes of {'root' if os.geteuid() == 0 else 'yours'} and can do all that you can"

    def unavailable(self) -> str | None:
        """Say why this engine cannot be used here, or None when it can."""
        return None if sys.platform == "linux" else "the local engine needs Linux (affinity, LD_PRELOAD)"

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build what is missing of ``image`` and its libraries, or find it built (at once, by its build record)."""
        if image.ready:
            raise SkipEnvironmentError(
                f"image {image.name} is {image.ready}, which only a container can be",
                remedy="use `--engine docker` or `--engine apptainer`",
            )
        if image.suite and not image.requirements and not image.on_host:
            raise SkipEnvironmentError(
                f"image {image.name} is made of Debian {image.suite}'s own packages, which only a container can hold",
                remedy="use `--engine docker` or `--engine apptainer`",
            )
        if image.conda:
            given, solved = conda.as_interpreter(self.places.cache, image, progress)
            made = self.prepare(given, libraries, progress)
            return replace(made, facts={**made.facts, **solved.facts})
        if image.modules:  # what they bring may be another tomorrow: nothing is remembered of it
            return replace(self._loaded(image, libraries, progress), loader=frozenset(known_to_loader()))
        python = _given(image.interpreter) if image.interpreter else remembered_python(self.places.cache, image.python)
        over = base_of(python) if image.interpreter else None  # which may have been upgraded since
        digest = inputs_digest(self.places, image, libraries, asdict(python), over.digest if over else "")
        build_record = self.places.cache.root / "prepared" / f"local-{digest[:24]}.json"
        known = prepared_from(self.places.cache.read_json(build_record))
        prepared = _still_there(known)
        if prepared is None:
            if known and Path(known.reference).is_relative_to(self.places.cache.root):
                shutil.rmtree(known.reference, ignore_errors=True)  # a part of a venv is none
            prepared = self._build(image, libraries, python, progress)
            if not prepared.missing and not prepared.without_torch:  # what is missing now may be installed next time
                self.places.cache.write(build_record, json.dumps({**asdict(prepared), "loader": None}))
        return replace(prepared, loader=frozenset(known_to_loader()))

    def _loaded(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        loaded = modules.load(image.modules)
        path = [*filter(None, [loaded.variables.get("PATH")]), _PATH]
        variables = {**loaded.variables, "PATH": ":".join(path), "LC_ALL": "C.UTF-8"}
        python = _given(image.interpreter or "python3", variables)
        prepared = self._build(image, libraries, python, progress, variables)
        facts = {**prepared.facts, "modules": " ".join(loaded.names), "modules_digest": loaded.digest}
        return replace(prepared, facts=facts, variables=loaded.variables)

    def _build(
        self,
        image: Image,
        libraries: tuple[Library, ...],
        python: Python,
        progress: ProgressCallback,
        variables: Mapping[str, str] | None = None,
    ) -> Prepared:
        cache = self.places.cache
        locks = Locks(self.places.locks, cache)
        without = ""
        if image.on_host:
            reference, program, facts = self._given(image, python, locks, progress)
            torch, without = self._torch_of(program, image, facts, variables)
            facts = {**facts, **torch}
        else:
            reference, program, facts = self._venv(image, python, locks, progress)
        host = python if not image.on_host else remembered_python(cache, None)
        folders: Folders = LibraryBuilder(cache, locks, host, progress).build(libraries)
        facts = {**facts, "python": python.version, **folders.facts}
        return Prepared(
            image.name, self.name, reference, program, folders.folders, facts, folders.missing, without_torch=without
        )

    def _torch_of(
        self, program: str, image: Image, facts: Mapping[str, str], variables: Mapping[str, str] | None
    ) -> tuple[dict[str, str], str]:
        """Return which torch a given Python has; to import it takes seconds, so what was seen once is known."""
        if image.modules:  # what they bring may be another tomorrow
            return _look_for_torch(program, image, variables or {})
        key = digest_of(program, facts.get("over_packages", ""), facts.get("lock_digest", ""))
        file = self.places.cache.root / "prepared" / f"torch-{key[:24]}.json"
        known = {name: str(value) for name, value in (self.places.cache.read_json(file) or {}).items()}
        if Path(known.get("torch_file", "")).is_file():
            return known, ""
        torch, without = _look_for_torch(program, image, {"PATH": _PATH, "LC_ALL": "C.UTF-8"})
        if torch:
            self.places.cache.write(file, json.dumps(torch))
        return torch, without

    def _given(
        self, image: Image, python: Python, locks: Locks, progress: ProgressCallback
    ) -> tuple[str, str, dict[str, str]]:
        """Return a Python that is there as it is, or a venv over it that holds what it lacks of the requirements."""
        if image.modules:
            return python.path, python.path, {}
        base = base_of(python)
        had = {f"package conda:{name}": version for name, version in base.conda}
        if not image.requirements:
            return python.path, python.path, {"over_packages": base.digest, **had}
        path, section = locks.of_overlay(image, python, base, progress)
        check_uv(self.places.cache, section.packages)
        wheels = wheels_of(self.places.cache, image, (path, section), python, progress)
        folder = build_overlay(self.places.cache, python, base, wheels.pins, wheels.files, progress)
        facts = {"over": python.path, "over_packages": base.digest, "lock": path.name, **had}
        facts |= {"lock_digest": f"sha256:{sections_digest([section])}"}
        facts |= {f"package {pin.name}": pin.version for pin in section.packages}
        return str(folder), str(folder / "bin" / "python"), facts

    def _venv(
        self, image: Image, python: Python, locks: Locks, progress: ProgressCallback
    ) -> tuple[str, str, dict[str, str]]:
        path, section = locks.of_image(image, python, progress)
        check_uv(self.places.cache, section.packages)
        wheels = wheels_of(self.places.cache, image, (path, section), python, progress)
        folder = build_venv(self.places.cache, python, wheels.pins, wheels.files, progress)
        program = str(folder / "bin" / "python")
        held = run(listing_argv(program, str(packages_of(folder))), limit_s=_LISTING_S).stdout
        facts = {"lock": path.name, "lock_digest": f"sha256:{sections_digest([section])}"}
        facts |= {"files_digest": keep_listing(self.places.cache, held)}
        facts |= {f"package {pin.name}": pin.version for pin in section.packages} | dict(wheels.facts)
        return str(folder), program, facts

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        """Return host paths: nothing is hidden from a local process."""
        return {"work": str(mounts.work), **{name: str(path) for name, path in mounts.read.items()}}

    def holds(self, prepared: Prepared) -> bool:
        """Whether the venv and the libraries are still there."""
        return _still_there(prepared) is not None

    def run(self, job: Job) -> Exit:
        """Run ``job`` with exactly its variables; LD_PRELOAD is set only in the child."""
        with self.started(job) as running:
            return running.exit()

    def started(self, job: Job) -> AbstractContextManager[GuardedJob]:
        """Start ``job``."""
        return guarded_job(job, job.argv, _variables(job))

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as a command; its memory limit is RLIMIT_DATA, as here where no cgroup may be made."""
        needs = (Path(job.prepared.python), *(Path(path) for path in job.preload if "/" in path))
        return CommandLine(job.argv, _variables(job), job.mounts.work, place=plain_place(job.limits), needs=needs)

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start a program with the venv's Python; LD_PRELOAD is set for it alone."""
        loaded = variables.get("LD_PRELOAD")
        start = f"env LD_PRELOAD={quoted(loaded)} " if loaded else ""
        brought = prepared.facts.get("modules", "").split()
        what = "comes with modules, which" if brought else "is a venv; it"
        return [
            f"# The environment {what} must lie on a file system that the node sees.",
            *(f"module load {quoted(name)}" for name in brought),
            *(f"unset {name}" for name, value in variables.items() if value is None),
            *(f"export {n}={quoted(v)}" for n, v in variables.items() if v is not None and n != "LD_PRELOAD"),
            f"exec {placement}{start}{words_of(prepared.python, program)}",
        ]

    def sweep(self, run: str) -> int:
        """Remove the cgroups of a killed run (its processes died with it)."""
        return sweep_groups(run)


@dataclass(frozen=True)
class GuardedJob:
    """A job that a supervisor started, alone or in a client such as Apptainer's."""

    program: Guarded
    confinement: Confinement

    def fileno(self) -> int:
        """Return what can be read when it has ended."""
        return self.program.fileno()

    def hold(self) -> None:
        """Stop all its processes."""
        self.program.hold()

    def release(self) -> None:
        """Let all its processes go on."""
        self.program.release()

    def end(self) -> None:
        """Begin to end it."""
        self.program.end()

    def exit(self) -> Exit:
        """Wait for its end and return how it ended."""
        ended = self.program.answer()
        return replace(ended, out_of_memory=not ended.ok and self.confinement.ran_out())


@contextlib.contextmanager
def guarded_job(job: Job, argv: Sequence[str], env: Mapping[str, str]) -> Iterator[GuardedJob]:
    """Start the command of a job where, and with the memory, that its limits say."""
    limited = confined(group_name(job), job.limits)
    with log_of(job) as log, limited as confinement:
        order = Order(argv, env, job.folder or job.mounts.work, job.limits.seconds, confinement.place)
        with started(order, log) as program:
            yield GuardedJob(program, confinement)


def _variables(job: Job) -> dict[str, str]:
    return {**modules.with_modules(job.prepared.variables, job.env), **preload_variable(job.preload)}


def preload_variable(preload: tuple[str, ...]) -> dict[str, str]:
    """Return LD_PRELOAD for these libraries, in this order; the loader splits at blanks and colons."""
    bad = next((path for path in preload if re.search(r"[\s:]", path)), None)
    if bad:
        raise EngineError(
            f"{bad!r} cannot be preloaded: the loader splits LD_PRELOAD at blanks and colons (ld.so(8))",
            remedy="set ENVMATRIX_CACHE to a folder without blanks and colons in its path",
        )
    return {"LD_PRELOAD": ":".join(preload)} if preload else {}


def plain_name(text: str) -> str:
    """Return a text as it can stand in a file's name; one that has to change gets a hash, to stay distinct."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", text)[:100]
    return plain if plain == text else f"{plain[:91]}-{digest_of(text)[:8]}"


def sweep_groups(run: str) -> int:
    """Remove the cgroups that a killed run of that name left behind; return how many."""
    return sum(remove_group(group) for group in leftover_groups(_GROUP + plain_name(run) + "."))


def group_name(job: Job) -> str:
    """Return the name of a job's cgroup."""
    return f"{_GROUP}{plain_name(job.run)}.{plain_name(job.label)}"


def _still_there(prepared: Prepared | None) -> Prepared | None:
    """Return what a build record says, or None when what it names is gone."""
    if prepared is None:
        return None
    paths = [prepared.reference, prepared.python, *prepared.libraries.values()]
    return prepared if all(Path(path).exists() for path in paths) else None


def _given(interpreter: str, variables: Mapping[str, str] | None = None) -> Python:
    path = shutil.which(Path(interpreter).expanduser(), path=variables["PATH"] if variables else None)
    python = ask(path, variables) if path else None
    if python is None:
        raise SkipEnvironmentError(
            f"interpreter: {interpreter} is no Python that starts on this machine",
            remedy="name the module that has it (`modules:`), or write its full path in matrix.yaml",
        )
    return python


def _look_for_torch(python: str, image: Image, variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return which torch the given Python has in the empty environment of a trial, or why it has none."""
    done = run([python, "-c", _TORCH], limit_s=300.0, env=variables)
    what = f"modules: {' '.join(image.modules)}" if image.modules else f"interpreter: {image.interpreter}"
    try:
        version, file = said_json(done.stdout)
    except ValueError:
        if "libcuda" in done.stderr and not has_gpu():
            reason = f"{what} ({python}) has a PyTorch for CUDA, and there is no GPU here"
            remedy = "run it where there is a GPU (/dev/nvidia0), or name an interpreter with a PyTorch for the CPU"
            return {}, f"{reason}\n  -> {remedy}"
        reason = f"{what} ({python}) cannot import torch: {done.last_words(1)}"
        remedy = f"install PyTorch for it (`{python} -m pip install torch`), or name another interpreter"
        return {}, f"{reason}\n  -> {remedy}"
    return {"torch": version, "torch_file": file}, ""
