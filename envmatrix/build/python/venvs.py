"""Build venvs offline from the wheelhouse; venvs on one disk share files by hard links.

An overlay venv has extra packages on top of an existing Python, whose own packages stay visible.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, file_digest, json_digest, tool_error
from envmatrix.build.python.interpreters import Python, uv_program
from envmatrix.build.python.pip import Pip, make_venv_with_pip
from envmatrix.build.python.wheelhouse import EnvironmentWheels, find_links_folders
from envmatrix.durations_and_sizes import as_packages
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.system.process import parse_last_json, run
from envmatrix.system.progress import ProgressCallback

_BUILD_S = 1800.0


def install_argv(uv: str, folder: Path, wheels: Sequence[Path], requirements: Path) -> list[str]:
    """Return the command that installs a lock offline from folders of wheels."""
    return [
        uv, "pip", "install", "--quiet", "--no-config", "--offline", "--no-index", "--no-deps", "--require-hashes",
        "--link-mode", "hardlink", "--python", str(folder / "bin" / "python"),
        *(f"--find-links={shelf}" for shelf in wheels), "--requirement", str(requirements),
    ]  # fmt: skip


def build_venv(cache: Cache, python: Python, wheels: EnvironmentWheels, progress: ProgressCallback) -> Path:
    """Build or reuse the venv of exactly these wheels and this Python; it can be moved (``--relocatable``)."""
    packages = [(pin.name, pin.sha256) for pin in wheels.pins]
    key = json_digest(python.path, python.version, packages, compile_argv(Path(), Path()))
    folder = cache.root / "venvs" / key[:24]

    def build(place: Path) -> None:
        progress(f"building a venv of {as_packages(len(wheels.pins))} on Python {python.version}")
        argv = [
            uv_program(), "venv", "--quiet", "--no-config", "--offline", "--no-python-downloads", "--relocatable",
            "--allow-existing", "--python", python.path, str(place),
        ]  # fmt: skip
        _run_uv(cache, argv)
        install_into(cache, place, wheels)

    cache.folder(folder, build)
    return folder


def install_into(cache: Cache, venv: Path, wheels: EnvironmentWheels) -> None:
    """Install exactly these wheels into an empty venv."""
    if not wheels.pins:
        return
    with cache.scratch("venv") as scratch:
        requirements = scratch / "requirements.txt"
        requirements.write_text("".join(pin.text() for pin in wheels.pins), encoding="utf-8")
        _run_uv(cache, install_argv(uv_program(), venv, find_links_folders(cache, wheels.files), requirements))
        _remove_download_notes(site_packages(venv))
        share_bytecode(cache, venv)


def _remove_download_notes(packages: Path) -> None:
    """Remove uv's record of each wheel file's time, which would differ between machines.

    RECORD is replaced, not edited in place: uv's cache may share the file by a hard link.
    """
    for note in packages.glob("*.dist-info/uv_cache.json"):
        record_file = note.with_name("RECORD")
        line = f"{note.parent.name}/{note.name},".encode()
        other_entries = [
            entry for entry in record_file.read_bytes().splitlines(keepends=True) if not entry.startswith(line)
        ]
        record_file.unlink()
        record_file.write_bytes(b"".join(other_entries))
        note.unlink()


def site_packages(folder: Path) -> Path:
    """Return the folder of a venv's packages."""
    return next((folder / "lib").glob("python*/site-packages"))


def compile_argv(folder: Path, packages: Path) -> list[str]:
    """Return the command that compiles modules to bytecode without the venv's path or times."""
    program = str(folder / "bin" / "python")
    return [
        program, "-m", "compileall", "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash",
        "-s", str(packages), str(packages),
    ]  # fmt: skip


def share_bytecode(cache: Cache, folder: Path) -> None:
    """Compile a venv's modules, and share equal bytecode files among all venvs.

    Trials never write bytecode, so that imports cost the same in each. Modules that do not compile (templates, tests of
    syntax errors) are ignored, because Python would not import them either.
    """
    packages = site_packages(folder)
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1"}
    run(compile_argv(folder, packages), limit_s=_BUILD_S, cwd=folder, env=variables)
    for file in packages.rglob("*.pyc"):
        name = file_digest(file)
        shared_file = cache.root / "bytecode" / name[:2] / name
        if not shared_file.exists():
            shared_file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                shared_file.hardlink_to(file)
        else:
            file.unlink()
            file.hardlink_to(shared_file)


def _run_uv(cache: Cache, argv: Sequence[str]) -> None:
    """Run uv; the host's settings do not reach it."""
    host_variables = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
    uv_settings = {"UV_CACHE_DIR": str(cache.root / "uv"), "UV_CONCURRENT_BUILDS": "1", "LC_ALL": "C.UTF-8"}
    result = run(argv, limit_s=_BUILD_S, env={**host_variables, **uv_settings})
    if not result.exit.ok:
        message = f"uv could not build a venv: {result.last_words(6)}"
        remedy = f"if a cached file may be damaged, remove {cache.root} and try again"
        raise tool_error(result.stderr, cache.root, message, remedy)


_ASK_S = 120.0
#: Prints a Python's package folders, packages, entry points, and the conda packages installed with it, taken from the
#: names of their records (NAME-VERSION-BUILD.json).
_FACTS = """
import json, os, site, sys, sysconfig
from importlib import metadata
folders = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
folders = [path for path in dict.fromkeys(folders) if os.path.isdir(path)]
packages, programs = set(), {}
for one in metadata.distributions():
    packages.add((str(one.metadata["Name"]), str(one.version)))
    for point in one.entry_points:
        if point.group == "console_scripts":
            programs.setdefault(point.name, point.value)
conda = os.path.join(sys.prefix, "conda-meta")
names = os.listdir(conda) if os.path.isdir(conda) else []
records = [name[:-5] for name in names if name.endswith(".json") and name.count("-") > 1]
print(json.dumps([folders, sorted(packages), sorted(programs.items()), sorted(records)]))
"""
#: Read after the venv's own packages, which therefore take precedence; it also processes the base's .pth files.
_PTH = "envmatrix-base.pth"
_PROGRAM_TEMPLATE = """#!{python}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({function}())
"""
_ENTRY_POINT = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?\Z")


@dataclass(frozen=True)
class BasePython:
    """The packages of an existing Python: folders, ``packages`` (name, version), programs (name, entry point).

    ``conda`` lists all packages of a conda environment, including those without Python (name, version and build).
    """

    folders: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    programs: tuple[tuple[str, str], ...]
    conda: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """A digest that changes when a package is added, removed or upgraded."""
        return json_digest(self.folders, self.packages, *([self.conda] if self.conda else []))


def inspect_base_python(python: Python) -> BasePython:
    """List the packages of a Python. Raises SkipEnvironmentError if it cannot report them."""
    result = run([python.path, "-I", "-c", _FACTS], limit_s=_ASK_S)
    try:
        folders, packages, programs, records = parse_last_json(result.stdout)
    except ValueError:
        raise SkipEnvironmentError(
            f"interpreter: cannot list the packages of {python.path}: {result.last_words(1)}",
            remedy="use Python 3.8 or newer: additional requirements need it",
        ) from None
    conda = tuple(
        (name, f"{version} {build}") for name, version, build in (record.rsplit("-", 2) for record in records)
    )
    return BasePython(tuple(folders), tuple(map(tuple, packages)), tuple(map(tuple, programs)), conda)


def add_package_folders(venv: Path, folders: Iterable[str]) -> None:
    """Make packages in ``folders`` importable in a venv, after its own packages."""
    line = "; ".join(["import site", *(f"site.addsitedir({folder!r})" for folder in folders)])
    (site_packages(venv) / _PTH).write_text(line + "\n", encoding="utf-8")


def overlay_pip(cache: Cache, python: Python, base: BasePython) -> Pip:
    """Return a pip that treats the packages of ``python`` as installed."""
    folder = cache.root / "tools" / f"pip-over-{json_digest(python.path, python.version, base.folders)[:16]}"

    def build(place: Path) -> None:
        make_venv_with_pip(python, place)
        argv = [str(place / "bin" / "python"), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "wheel"]
        run(argv, limit_s=_ASK_S)  # the venv's own copies must not count as installed
        add_package_folders(place, base.folders)

    cache.folder(folder, build)
    return Pip((str(folder / "bin" / "python"), "-m", "pip"), over=True)


def build_overlay(
    cache: Cache, python: Python, base: BasePython, wheels: EnvironmentWheels, progress: ProgressCallback
) -> Path:
    """Build or reuse a venv of ``wheels`` that sees the packages of ``python``; return its folder."""
    packages = [(pin.name, pin.sha256) for pin in wheels.pins]
    key = json_digest(python.path, python.version, base.digest, packages, _PROGRAM_TEMPLATE)
    folder = cache.root / "overlays" / key[:24]

    def build(place: Path) -> None:
        progress(f"building a venv of {as_packages(len(wheels.pins))} over {python.path}")
        _make_venv(python, place)
        install_into(cache, place, wheels)
        add_package_folders(place, base.folders)
        for name, entry in base.programs:
            _write_program(place / "bin" / name, folder / "bin" / "python", entry)

    cache.folder(folder, build)
    return folder


def _make_venv(python: Python, place: Path) -> None:
    """Create an empty, movable venv with Python's own venv module: a sitecustomize that prints breaks uv's."""
    result = run([python.path, "-I", "-m", "venv", "--without-pip", str(place)], limit_s=_ASK_S)
    if not result.exit.ok:
        raise EngineError(
            f"cannot create a venv over {python.path}: {result.last_words(2)}",
            remedy="install its venv module (`apt-get install python3-venv`)",
        )
    with (place / "pyvenv.cfg").open("a", encoding="utf-8") as settings:
        settings.write("relocatable = true\n")  # for uv, which writes the scripts


def _write_program(file: Path, python: Path, entry: str) -> None:
    """Write an entry-point script of the base for this venv; the base's own script would not see the overlay."""
    entry_point = _ENTRY_POINT.match(entry)
    if entry_point and not file.exists() and "/" not in file.name:
        module, function = entry_point[1], entry_point[2]
        script = _PROGRAM_TEMPLATE.format(python=python, module=module, first=function.split(".")[0], function=function)
        file.write_text(script, encoding="utf-8")
        file.chmod(0o755)
