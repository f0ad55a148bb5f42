"""Find the Python of an image on this machine; nothing is downloaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.cache import Cache, file_stamp, has_stamp, json_digest
from envmatrix.errors import EnvmatrixError, SkipEnvironmentError
from envmatrix.system.architectures import this_architecture
from envmatrix.system.printable import printable_line
from envmatrix.system.process import parse_last_json, run

_FACTS = (
    "import json, sys, sysconfig; "
    "print(json.dumps([sys.executable, '%d.%d.%d' % sys.version_info[:3], "
    "'cp%d%d%s' % (*sys.version_info[:2], 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''), "
    "sysconfig.get_platform().replace('-', '_').replace('.', '_')]))"
)
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?t?\Z")


@dataclass(frozen=True)
class Python:
    """A Python on this machine; ``tag`` is the tag of its wheels, such as cp311-linux_x86_64.

    ``target`` is another Python version (3.13), and ``architecture`` another architecture, for which it only chooses
    and fetches wheels.
    """

    path: str
    version: str
    tag: str
    target: str = ""
    architecture: str = ""

    @property
    def wheel_platform(self) -> str:
        """The platform of its wheels, such as linux_x86_64."""
        return self.tag.partition("-")[2]

    def for_architecture(self, architecture: str) -> Python:
        """Return this Python as it chooses wheels for an architecture; unchanged for this machine's own."""
        here = this_architecture()
        if architecture == here:
            return self
        tag = self.tag.replace(here, architecture)
        minor = ".".join(self.version.split(".")[:2]) + ("t" if self._is_free_threaded else "")
        return replace(self, tag=tag, target=self.target or minor, architecture=architecture)

    def fits(self, version: str) -> bool:
        """Return whether this Python matches a version such as 3.13, 3.13.1 or 3.13t (free-threaded)."""
        number, free_threaded = version.removesuffix("t"), version.endswith("t")
        same_version = self.version == number or self.version.startswith(number + ".")
        return same_version and free_threaded == self._is_free_threaded

    @property
    def _is_free_threaded(self) -> bool:
        return self.tag.partition("-")[0].endswith("t")


def inspect_interpreter(path: str, env: Mapping[str, str] | None = None) -> Python:
    """Return the facts of an interpreter. ``env`` replaces this process's variables.

    Raises EnvmatrixError with the reason if it does not start, or is no Python.
    """
    result = run([path, "-I", "-c", _FACTS], limit_s=30.0, env=env)
    last_words = result.last_words(1)
    if not result.exit.ok:
        remedy = "install that library" if "loading shared libraries" in last_words else ""
        raise EnvmatrixError(f"{path} {result.exit}{': ' if last_words else ''}{last_words}", remedy=remedy)
    try:
        executable, version, abi, platform = parse_last_json(result.stdout)
    except ValueError:
        raise EnvmatrixError(f"{path} is no Python: it printed {printable_line(last_words) or 'nothing'}") from None
    return Python(executable, version, f"{abi}-{platform}")


def _pyenv_candidates(version: str) -> Iterator[str]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    number, free_threaded = version.removesuffix("t"), "t" if version.endswith("t") else ""
    pattern = version if version.count(".") == 2 else f"{number}.*{free_threaded}"
    interpreters = (folder / "bin" / "python" for folder in root.glob(pattern))
    yield from sorted((str(path) for path in interpreters if path.exists()), reverse=True)


def _uv_candidates(version: str) -> Iterator[str]:
    try:
        result = run([uv_program(), "python", "find", "--no-python-downloads", "--offline", version], limit_s=30.0)
    except EnvmatrixError:
        return
    if result.exit.ok:
        yield result.stdout.strip()


def _candidates(version: str) -> Iterator[str]:
    if _own_version().startswith(version.removesuffix("t")):
        yield getattr(sys, "_base_executable", sys.executable)
    minor, free_threaded = ".".join(version.removesuffix("t").split(".")[:2]), version.endswith("t")
    program_names = (f"python{minor}t", f"python{minor}-nogil") if free_threaded else (f"python{minor}",)
    yield from filter(None, map(shutil.which, program_names))
    yield from _pyenv_candidates(version)
    yield from _uv_candidates(version)


def _own_version() -> str:
    free_threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return "{}.{}.{}".format(*sys.version_info[:3]) + free_threaded


def find_python(version: str | None) -> Python:
    """Return a Python of a version such as 3.13 or 3.13t (free-threaded); None: the one running envmatrix.

    Raises SkipEnvironmentError if this machine has none.
    """
    if version is None:
        version = _own_version()
    if not _VERSION.match(version):
        raise SkipEnvironmentError(
            f"python: {version!r} is not a version", remedy="write it as '3.11' (with quotes), '3.11.7' or '3.13t'"
        )
    broken = ""
    for path in _candidates(version):
        try:
            python = inspect_interpreter(path)
        except EnvmatrixError as error:
            broken = broken or f"; {error.message}"
            continue
        if python.fits(version):
            return python
    or_apt = "" if version.endswith("t") else f" or `apt-get install python{version} python{version}-venv`"
    raise SkipEnvironmentError(
        f"Python {version} was not found on this machine (searched PATH, pyenv and uv){broken}",
        remedy=f"install it: `uv python install {version}`, `pyenv install {version}`{or_apt}",
    )


def python_for_wheels(cache: Cache, version: str) -> Python:
    """Return a Python that can choose wheels for ``version``: of that version, or this one with a ``target``."""
    try:
        return find_python_cached(cache, version)
    except SkipEnvironmentError:
        own_python = find_python_cached(cache, None)
        tag = f"cp{version.replace('.', '')}-{own_python.tag.split('-', 1)[1]}"
        return Python(own_python.path, own_python.version, tag, version)


def find_python_cached(cache: Cache, version: str | None) -> Python:
    """Return the result of ``find_python``, cached as long as the interpreter does not change."""
    key = json_digest(version or sys.executable, os.environ.get("PATH", ""), this_architecture())[:16]
    build_record = cache.root / "pythons" / f"{key}.json"
    record = cache.read_json(build_record)
    if record and "stamp" in record and has_stamp(Path(str(record["path"])), str(record["stamp"])):
        return Python(str(record["path"]), str(record["version"]), str(record["tag"]))
    python = find_python(version)
    stamp = file_stamp(Path(python.path))
    new_record = {"path": python.path, "version": python.version, "tag": python.tag, "stamp": stamp}
    cache.write(build_record, json.dumps(new_record))
    return python


def uv_program() -> str:
    """Return the uv installed with envmatrix, or the one on PATH."""
    bundled = Path(sys.executable).parent / "uv"
    program = str(bundled) if bundled.exists() else shutil.which("uv")
    if not program:
        raise EnvmatrixError("uv is not installed", remedy=f"`{sys.executable} -m pip install uv`")
    return program
