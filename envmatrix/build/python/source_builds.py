"""Build packages that have no wheel from a pinned source distribution, once per set of installed packages."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors, disk_full_error, file_digest, is_disk_full, json_digest
from envmatrix.build.debian.minimal_base import GLIBC
from envmatrix.build.lockfile import PinnedPackage, Section
from envmatrix.build.python.interpreters import Python, uv_program
from envmatrix.build.python.venvs import build_venv
from envmatrix.build.python.wheelhouse import BUILT_FOLDER, EnvironmentWheels, Wheelhouse
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError
from envmatrix.plan.environment import Image, SourceBuild
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import ProgressCallback

_BUILD_S = 7200.0
#: 1980-01-02: the earliest time that a zip archive can store in any time zone.
_EPOCH = "315619200"
#: Replaces the paths of the build folders in a wheel.
_SOURCE_PREFIX = "/usr/src/envmatrix"
_ERROR_LINE = re.compile(r"\berror\b|No module named", re.IGNORECASE)


def check_uv(cache: Cache, pins: Iterable[PinnedPackage]) -> None:
    """Raise an error before any download if uv, which installs packages, is missing."""
    house = Wheelhouse(cache)
    if any(house.held(pin) is None for pin in pins):
        uv_program()


def fetch_wheels(
    cache: Cache, image: Image, section: Section, python: Python, progress: ProgressCallback
) -> EnvironmentWheels:
    """Fetch the wheels of a locked image, and build the packages from source against them."""
    house = Wheelhouse(cache)
    builds = {build.name: build for build in image.builds}
    if builds:
        check_uv(cache, section.packages)
    wheel_pins = tuple(pin for pin in section.packages if pin.name not in builds)
    wheels = EnvironmentWheels(wheel_pins, tuple(house.fill(wheel_pins, python, image.index, progress)))
    sources = [pin for pin in section.packages if pin.name in builds]
    if not sources:
        return wheels
    check_python_for_builds(image, python)
    source_files = house.fill(sources, python, image.index, progress, tuple(builds))
    pins, files, facts = wheels.pins, wheels.files, dict(wheels.facts)
    for source, archive in zip(sources, source_files, strict=True):
        build = _Build(cache, builds[source.name], source, archive, python, wheels)
        pin, file, facts[f"built {source.name}"] = build.wheel(progress)
        pins, files = (*pins, pin), (*files, file)
    return EnvironmentWheels(pins, files, facts)


def check_python_for_builds(image: Image, python: Python) -> None:
    """Raise SkipEnvironmentError if an image builds from source for a Python that is missing here."""
    if image.builds and python.target:
        raise SkipEnvironmentError(
            f"image {image.name} builds {', '.join(build.name for build in image.builds)} from source; this "
            f"needs Python {python.target} on this machine",
            remedy=f"install it: `uv python install {python.target}`",
        )


def check_glibc(image: Image, suite: str) -> None:
    """Raise SkipEnvironmentError if an image builds from source and its suite's glibc is older than this machine's."""
    have, suites = tuple(map(int, re.findall(r"\d+", platform.libc_ver()[1])[:2])), GLIBC.get(suite)
    if image.builds and suites and have > suites:
        raise SkipEnvironmentError(
            f"image {image.name} builds {', '.join(build.name for build in image.builds)} from source: a "
            f"build on this machine needs glibc {'.'.join(map(str, have))}, and Debian {suite} has "
            f"{'.'.join(map(str, suites))}",
            remedy=f"use the local engine for it, or build it on a machine with the glibc of Debian {suite} "
            "or an older one",
        )


@dataclass(frozen=True)
class _Build:
    cache: Cache
    settings: SourceBuild
    source: PinnedPackage
    file: Path
    python: Python
    against: EnvironmentWheels

    def wheel(self, progress: ProgressCallback) -> tuple[PinnedPackage, Path, str]:
        """Return the wheel as a pin, its file, and a description of its source; build it if needed."""
        tools = {program: _program_version(program, self.source) for program in self.settings.programs}
        settings = json_digest(asdict(self.settings))
        key = json_digest(
            self.source.sha256, settings, [pin.sha256 for pin in self.against.pins],
            self.python.version, self.python.tag, tools, _EPOCH,
        )[:24]  # fmt: skip
        folder = self.cache.root / BUILT_FOLDER / key
        self.cache.folder(folder, lambda place: self._build_wheel(place, key, progress))
        file = next(folder.glob("*.whl"))
        digest = file_digest(file)
        identity = f"wheel sha256:{digest} from source sha256:{self.source.sha256}, settings {settings}"
        return replace(self.source, sha256=digest), file, ", ".join([identity, *tools.values()])

    def _build_wheel(self, place: Path, key: str, progress: ProgressCallback) -> None:
        """Build the wheel in the folder ``place``."""
        venv = build_venv(self.cache, self.python, self.against, progress)
        progress(f"building {self.source} from source; the result is cached")
        with self.cache.scratch("build") as scratch, disk_errors(scratch):
            folder = unpack_source(self.file, scratch / "source", self.source)
            for file, old_text, new_text in self.settings.edit:
                edit_source(folder, file, old_text, new_text, self.source)
            home = scratch / "home"
            home.mkdir()
            variables = build_variables(self.settings, venv, folder, home)
            argv = build_argv(uv_program(), venv, folder, scratch / "made")
            result = run(argv, limit_s=_BUILD_S, env=variables, cwd=folder)
            wheel = next(iter((scratch / "made").glob("*.whl")), None)
            if not result.exit.ok or wheel is None:
                raise self._failure(result, key)
            wheel.rename(place / wheel.name)

    def _failure(self, result: Finished, key: str) -> EngineError:
        if is_disk_full(result.stdout + result.stderr):
            return disk_full_error(self.cache.root)
        log = self.cache.root / BUILT_FOLDER / f"{key}.log"
        self.cache.write(log, result.stdout + result.stderr)
        lines = (result.stdout + "\n" + result.stderr).splitlines()
        error_lines = [line for line in lines if _ERROR_LINE.search(line)][:4] or result.last_words(4).splitlines()
        return EngineError(
            f"could not build {self.source} from source ({result.exit}):\n"
            + "\n".join(line[:300] for line in error_lines),
            remedy=f"read {log}, and list what it needs under `build:` of its level in matrix.yaml (docs/matrix.md)",
        )


def _program_version(program: str, source: PinnedPackage) -> str:
    """Return the first line of a program's version output. Raises SkipEnvironmentError if it is missing."""
    path = shutil.which(program)
    if path is None:
        raise SkipEnvironmentError(
            f"building {source} from source needs {program}, which is not installed on this machine",
            remedy=f"install it: `apt-get install {_DEBIAN_PACKAGES.get(program, program)}`",
        )
    result = run([path, "--version"], limit_s=60.0, env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"})
    return next(iter(result.stdout.splitlines()), "").strip() or program


#: Program -> Debian package, if the names differ.
_DEBIAN_PACKAGES = {"ninja": "ninja-build", "cc": "gcc", "c++": "g++", "ld": "binutils"}


def build_argv(uv: str, venv: Path, folder: Path, wheel_folder: Path) -> list[str]:
    """Return the command that builds a wheel offline with the packages of the venv."""
    return [
        uv, "build", "--wheel", "--no-config", "--offline", "--no-python-downloads", "--no-build-isolation",
        "--python", str(venv / "bin" / "python"), "--out-dir", str(wheel_folder), str(folder),
    ]  # fmt: skip


def build_variables(settings: SourceBuild, venv: Path, folder: Path, home: Path) -> dict[str, str]:
    """Return all variables of a build, chosen so that two builds of one source give the same bytes."""
    variables = dict(settings.env)
    prefix_maps = " ".join(
        f"-ffile-prefix-map={path}={_SOURCE_PREFIX}/{name}" for path, name in ((folder, "source"), (venv, "venv"))
    )
    flags = {name: f"{variables.get(name, '')} {prefix_maps}".strip() for name in ("CFLAGS", "CXXFLAGS")}
    programs = f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    common = {"MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}", "SOURCE_DATE_EPOCH": _EPOCH, "LC_ALL": "C.UTF-8"}
    fixed = {"PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "UV_CACHE_DIR": str(home / "uv")}
    return {**common, **variables, **flags, **fixed, "PATH": programs, "HOME": str(home), "TMPDIR": str(home)}


def unpack_source(archive: Path, folder: Path, source: PinnedPackage) -> Path:
    """Unpack a source distribution (PEP 625: one folder in a .tar.gz) and return its folder."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                _refuse_path_escape(member, source)
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
            else:
                tar.extractall(folder)  # noqa: S202 - every member was looked at above
    except (tarfile.TarError, EOFError) as error:
        raise EngineError(f"{source}: {archive.name} is not a valid source distribution: {error}") from error
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    if len(inside) != 1 or not inside[0].is_dir():
        raise EngineError(
            f"{source}: {archive.name} is not a valid source distribution: it must contain exactly one folder"
        )
    return inside[0]


def _refuse_path_escape(member: tarfile.TarInfo, source: PinnedPackage) -> None:
    path_parts = Path(member.name).parts
    if member.name.startswith("/") or ".." in path_parts or not (member.isreg() or member.isdir()):
        raise EngineError(
            f"{source}: its source distribution contains {member.name!r}, which is not a plain file inside it"
        )


def edit_source(folder: Path, file: str, old_text: str, new_text: str, source: PinnedPackage) -> None:
    """Replace text in a source file. Raises InputError if the text is not found."""
    target = folder / file
    try:
        content = target.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"build: edit: {source} has no text file {file}",
            remedy="name a file of its source distribution, relative to its top folder",
        ) from error
    if old_text not in content:
        raise InputError(
            f"build: edit: {file} of {source} does not contain {old_text!r}",
            remedy="copy the text exactly from that file",
        )
    target.write_bytes(content.replace(old_text, new_text).encode())
