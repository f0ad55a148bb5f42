"""Build venvs offline from the wheelhouse; venvs on one disk share files by hard links."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from envmatrix.build.cache import Cache, file_digest, json_digest, tool_error
from envmatrix.build.python.interpreters import Python, uv_program
from envmatrix.build.python.wheelhouse import EnvironmentWheels, find_links_folders
from envmatrix.system.process import run
from envmatrix.system.progress import ProgressCallback
from envmatrix.units import as_packages

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
