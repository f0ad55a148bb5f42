"""Packages without a wheel: built once on the host from a pinned source distribution, against their environment."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from envmatrix.build.cache import Cache, digest_of, disk_errors, disk_full, file_digest, is_disk_full
from envmatrix.build.debian_suites import GLIBC
from envmatrix.build.lockfile import Pinned, Section
from envmatrix.build.pythons import Python, uv_program
from envmatrix.build.venvs import build_venv
from envmatrix.build.wheelhouse import BUILT, Wheelhouse
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError
from envmatrix.plan.environment import Image, SourceBuild
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import ProgressCallback

_BUILD_S = 7200.0
#: 1980-01-02: the oldest time, in any time zone, that an archive of the zip format can hold.
_EPOCH = "315619200"
#: What stands in a wheel for the folders that it was built in.
_PLACE = "/usr/src/envmatrix"
_COMPLAINT = re.compile(r"\berror\b|No module named", re.IGNORECASE)


@dataclass(frozen=True)
class Installed:
    """What an environment installs: pinned wheels and their files; ``facts`` say which were built, from what."""

    pins: tuple[Pinned, ...]
    files: tuple[Path, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


def check_uv(cache: Cache, pins: Iterable[Pinned]) -> None:
    """Say that there is no uv, which installs them, before anything of ``pins`` is downloaded."""
    house = Wheelhouse(cache)
    if any(house.held(pin) is None for pin in pins):
        uv_program()


def wheels_of(
    cache: Cache, image: Image, locked: tuple[Path, Section], python: Python, progress: ProgressCallback
) -> Installed:
    """Fetch the wheels of a locked image; what it builds from source is built against the others, once."""
    lock, section = locked
    house = Wheelhouse(cache)
    builds = {build.name: build for build in image.builds}
    if builds:
        check_uv(cache, section.packages)
    plain = [pin for pin in section.packages if pin.name not in builds]
    files = house.fill(plain, lock, python, image.index, progress)
    sources = [pin for pin in section.packages if pin.name in builds]
    if not sources:
        return Installed(tuple(plain), tuple(files))
    check_python(image, python)
    found = house.fill(sources, lock, python, image.index, progress, tuple(builds))
    made = [
        _Build(cache, builds[pin.name], pin, file, python, (tuple(plain), tuple(files))).wheel(progress)
        for pin, file in zip(sources, found, strict=True)
    ]
    return Installed(
        (*plain, *(pin for pin, _, _ in made)),
        (*files, *(file for _, file, _ in made)),
        {f"built {pin.name}": fact for pin, _, fact in made},
    )


def check_python(image: Image, python: Python) -> None:
    """Skip an image that builds from source for a Python which is not on this machine."""
    if image.builds and python.target:
        raise SkipEnvironmentError(
            f"image {image.name} builds {', '.join(build.name for build in image.builds)} from source, for which this "
            f"machine needs Python {python.target}",
            remedy=f"install it: `uv python install {python.target}`",
        )


def check_glibc(image: Image, suite: str) -> None:
    """Skip an image whose suite has an older glibc than this machine, where what it builds is linked."""
    have, suites = tuple(map(int, re.findall(r"\d+", platform.libc_ver()[1])[:2])), GLIBC.get(suite)
    if image.builds and suites and have > suites:
        raise SkipEnvironmentError(
            f"image {image.name} builds {', '.join(build.name for build in image.builds)} from source: built here it "
            f"needs glibc {'.'.join(map(str, have))}, and Debian {suite} has {'.'.join(map(str, suites))}",
            remedy=f"use the local engine for it, or build it on a machine as old as Debian {suite}",
        )


@dataclass(frozen=True)
class _Build:
    cache: Cache
    settings: SourceBuild
    source: Pinned
    file: Path
    python: Python
    against: tuple[tuple[Pinned, ...], tuple[Path, ...]]

    def wheel(self, progress: ProgressCallback) -> tuple[Pinned, Path, str]:
        """Return the wheel as a pin, its file, and where it comes from; built when it is not there yet."""
        tools = {program: _version_of(program, self.source) for program in self.settings.programs}
        settings = digest_of(asdict(self.settings))
        key = digest_of(
            self.source.sha256, settings, [pin.sha256 for pin in self.against[0]], self.python.version, self.python.tag,
            tools, _EPOCH,
        )[:24]  # fmt: skip
        build_record = self.cache.root / BUILT / f"{key}.json"
        with self.cache.only_one(f"build {key}"):
            known = self.cache.read_json(build_record) or {}
            file = self._kept(str(known.get("wheel")))
            if file is None:
                file = self._make(key, progress)
                self.cache.write(build_record, json.dumps({"wheel": file.parent.name, "source": self.source.sha256}))
        wheel = file.parent.name
        said = [
            f"wheel sha256:{wheel} from source sha256:{self.source.sha256}",
            f"settings {settings}",
            *tools.values(),
        ]
        return replace(self.source, sha256=wheel), file, ", ".join(said)

    def _kept(self, digest: str) -> Path | None:
        return next(iter((self.cache.root / BUILT / digest).glob("*.whl")), None)

    def _make(self, key: str, progress: ProgressCallback) -> Path:
        """Build the wheel and return it in the folder that is called by its digest."""
        venv = build_venv(self.cache, self.python, *self.against, progress)
        progress(f"building {self.source} from its source; it is kept for the next time")
        with self.cache.scratch("build") as scratch, disk_errors(scratch):
            folder = unpacked(self.file, scratch / "source", self.source)
            for file, old, new in self.settings.edit:
                edit(folder, file, old, new, self.source)
            home = scratch / "home"
            home.mkdir()
            variables = build_variables(self.settings, venv, folder, home)
            argv = build_argv(uv_program(), venv, folder, scratch / "made")
            done = run(argv, limit_s=_BUILD_S, env=variables, cwd=folder)
            wheel = next(iter((scratch / "made").glob("*.whl")), None)
            if not done.exit.ok or wheel is None:
                raise self._failure(done, key)
            return self._keep(wheel)

    def _keep(self, wheel: Path) -> Path:
        def place(folder: Path) -> None:
            wheel.rename(folder / wheel.name)

        kept = self.cache.root / BUILT / file_digest(wheel)
        self.cache.folder(kept, place)
        return kept / wheel.name

    def _failure(self, done: Finished, key: str) -> EngineError:
        if is_disk_full(done.stdout + done.stderr):
            return disk_full(self.cache.root)
        log = self.cache.root / BUILT / f"{key}.log"
        self.cache.write(log, done.stdout + done.stderr)
        lines = (done.stdout + "\n" + done.stderr).splitlines()
        said = [line for line in lines if _COMPLAINT.search(line)][:4] or done.last_words(4).splitlines()
        return EngineError(
            f"{self.source} could not be built from source ({done.exit}):\n" + "\n".join(line[:300] for line in said),
            remedy=f"see {log}; what it needs stands under `build:` of its level in matrix.yaml (docs/matrix.md)",
        )


def _version_of(program: str, source: Pinned) -> str:
    """Return the first line that a program says of its version; a missing one skips the environment."""
    path = shutil.which(program)
    if path is None:
        raise SkipEnvironmentError(
            f"{source} is built from source, which needs {program}, and there is none on this machine",
            remedy=f"install it: `apt-get install {_DEBIAN.get(program, program)}`",
        )
    said = run([path, "--version"], limit_s=60.0, env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"})
    return next(iter(said.stdout.splitlines()), "").strip() or program


#: Program -> Debian package, where the names differ.
_DEBIAN = {"ninja": "ninja-build", "cc": "gcc", "c++": "g++", "ld": "binutils"}


def build_argv(uv: str, venv: Path, folder: Path, made: Path) -> list[str]:
    """Return the command that builds a wheel with what the venv has, with the network off."""
    return [
        uv, "build", "--wheel", "--no-config", "--offline", "--no-python-downloads", "--no-build-isolation",
        "--python", str(venv / "bin" / "python"), "--out-dir", str(made), str(folder),
    ]  # fmt: skip


def build_variables(settings: SourceBuild, venv: Path, folder: Path, home: Path) -> dict[str, str]:
    """Return all that a build may know: two builds of one source must give the same bytes."""
    named = dict(settings.env)
    here = " ".join(f"-ffile-prefix-map={path}={_PLACE}/{name}" for path, name in ((folder, "source"), (venv, "venv")))
    flags = {name: f"{named.get(name, '')} {here}".strip() for name in ("CFLAGS", "CXXFLAGS")}
    programs = f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    common = {"MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}", "SOURCE_DATE_EPOCH": _EPOCH, "LC_ALL": "C.UTF-8"}
    fixed = {"PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "UV_CACHE_DIR": str(home / "uv")}
    return {**common, **named, **flags, **fixed, "PATH": programs, "HOME": str(home), "TMPDIR": str(home)}


def unpacked(archive: Path, folder: Path, source: Pinned) -> Path:
    """Unpack a source distribution (PEP 625: one folder in a .tar.gz) and return its folder."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                _refuse_what_leaves(member, source)
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
            else:
                tar.extractall(folder)  # noqa: S202 - every member was looked at above
    except (tarfile.TarError, EOFError) as error:
        raise EngineError(f"{source}: {archive.name} is no source distribution: {error}") from error
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    if len(inside) != 1 or not inside[0].is_dir():
        raise EngineError(f"{source}: {archive.name} is no source distribution: it must hold one folder")
    return inside[0]


def _refuse_what_leaves(member: tarfile.TarInfo, source: Pinned) -> None:
    parts = Path(member.name).parts
    if member.name.startswith("/") or ".." in parts or not (member.isreg() or member.isdir()):
        raise EngineError(f"{source}: its source distribution holds {member.name!r}, which is no plain file inside it")


def edit(folder: Path, file: str, old: str, new: str, source: Pinned) -> None:
    """Replace a text in a file of the source; a text that is not there is a mistake of matrix.yaml."""
    target = folder / file
    try:
        text = target.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"build: edit: {source} has no text file {file}",
            remedy="name a file of its source distribution, from its top folder",
        ) from error
    if old not in text:
        raise InputError(
            f"build: edit: {file} of {source} does not hold {old!r}", remedy="write the text exactly as it stands there"
        )
    target.write_bytes(text.replace(old, new).encode())
