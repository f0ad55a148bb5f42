"""Resolve and download packages with the host's pip, and so with its mirrors, proxies, certificates and wheels."""

from __future__ import annotations

import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name

from envmatrix.build.cache import Cache, json_digest, tool_error
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.python.interpreters import Python, uv_program
from envmatrix.errors import EngineError, EnvmatrixError, InputError
from envmatrix.system.architectures import this_architecture
from envmatrix.system.process import Finished, run

_RESOLVE_S = 1800.0
#: Minor version of the oldest glibc of an image's suite (bookworm: 2.36).
_IMAGE_GLIBC = 36
_DOWNLOAD_S = 7200.0
#: Variables for installing on the host that must not affect resolving or downloading for an image.
_DROPPED_VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT",
    "PIP_REQUIRE_HASHES", "PIP_NO_DEPS", "PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_REPORT",
    "PIP_PYTHON", "PIP_PLATFORM", "PIP_DEST",
)  # fmt: skip


#: Starts pip on a machine with the architecture in the first argument, as far as pip can see.
_PIP_ELSEWHERE = (
    "import platform, runpy, sys; there = sys.argv.pop(1); platform.machine = lambda: there; "
    "runpy.run_module('pip', run_name='__main__')"
)

_REMEDIES = Path(__file__).with_suffix(".yaml")
_DEFAULT_REMEDY = "check the network, the proxy, `pip config list` (index-url, find-links) and the requested versions"


@dataclass(frozen=True)
class ResolveRequest:
    """A request to pip. ``sources`` are taken as source distributions, whose metadata is built with ``env``."""

    requirements: tuple[str, ...]
    index: tuple[str, ...] = ()
    dependencies: bool = True
    sources: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def target_options(version: str, architecture: str = "") -> list[str]:
    """Return pip's options to choose wheels for another Python version (pip matches platforms literally)."""
    if not version:
        return []
    machine = architecture or this_architecture()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_IMAGE_GLIBC, 4, -1)]
    platforms += [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")] + [f"linux_{machine}"]
    abi = f"cp{version.replace('.', '')}"
    return [
        "--python-version", version.removesuffix("t"), "--implementation", "cp",
        *(word for name in (abi, "abi3", "none") for word in ("--abi", name)),
        *(word for name in platforms for word in ("--platform", name)),
    ]  # fmt: skip


@dataclass(frozen=True)
class Pip:
    """A pip, and the Python version and architecture to choose wheels for, if they are not its own.

    ``over``: packages of its own Python count as installed.
    """

    command: tuple[str, ...]
    target: str = ""
    architecture: str = ""
    over: bool = False

    def _options(self, request: ResolveRequest) -> list[str]:
        """Return the options that accept only wheels, except for ``sources``, and only from reachable indexes."""
        return [
            "--quiet", "--only-binary=:all:", *(f"--no-binary={name}" for name in request.sources),
            *target_options(self.target, self.architecture), *(f"--extra-index-url={url}" for url in request.index),
        ]  # fmt: skip

    def resolve_argv(self, request: ResolveRequest, report: Path) -> list[str]:
        """Return the command that resolves versions and hashes without downloading or installing wheels."""
        return [
            *self.command, "install", "--dry-run", *([] if self.over else ["--ignore-installed"]),
            *([] if request.dependencies else ["--no-deps"]),
            *(["--target", str(report.with_name("unused"))] if self.target else []), *self._options(request),
            "--report", str(report), "--", *request.requirements,
        ]  # fmt: skip

    def download_argv(self, request: ResolveRequest, requirements: Path, folder: Path) -> list[str]:
        """Return the command that downloads the packages of a requirements file with hashes."""
        return [
            *self.command, "download", "--no-deps", "--require-hashes", *self._options(request),
            "--dest", str(folder), "--requirement", str(requirements),
        ]  # fmt: skip

    def resolve(self, request: ResolveRequest, scratch: Path) -> tuple[PinnedPackage, ...]:
        """Return exact versions and hashes for a request, sorted by name.

        Unreachable indexes are skipped, because another source may have the wheel.
        """
        report, (request, unreachable) = scratch / "report.json", _without_unreachable(request)
        env = {**pip_variables(os.environ), **request.env}
        result = run(self.resolve_argv(request, report), limit_s=_RESOLVE_S, env=env)
        if not result.exit.ok:
            raise _failure("resolve", result, request, unreachable)
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
        return tuple(sorted((_pin(**item) for item in items), key=lambda pin: pin.name))

    def download(self, request: ResolveRequest, pins: Sequence[PinnedPackage], folder: Path) -> None:
        """Download ``pins``, which ``request`` asks for, to ``folder``.

        An error about a wrong hash names the package and its line in the lock.
        """
        requirements, (request, unreachable) = folder.parent / "requirements.txt", _without_unreachable(request)
        requirements.write_text("".join(pin.text() for pin in pins), encoding="utf-8")
        argv = self.download_argv(request, requirements, folder)
        result = run(argv, limit_s=_DOWNLOAD_S, env=pip_variables(os.environ))
        if not result.exit.ok:
            raise _mismatch(result, pins) or _failure("download", result, request, unreachable)


def _without_unreachable(request: ResolveRequest) -> tuple[ResolveRequest, list[str]]:
    """Return a request with only its reachable indexes, and the others."""
    unreachable = [url for url in request.index if not is_reachable(url)]
    return replace(request, index=tuple(url for url in request.index if url not in unreachable)), unreachable


def pip_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the host's variables without those that would change what pip does."""
    remaining = {name: value for name, value in variables.items() if name not in _DROPPED_VARIABLES}
    return {**remaining, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONNOUSERSITE": "1"}


def cached_pip(cache: Cache, python: Python) -> Pip:
    """Return a pip for ``python``, in its own venv inside the cache.

    pip decides about markers such as ``platform_machine == "x86_64"`` by its own machine, even with ``--platform``.
    So for another architecture it is told that its machine is that one.
    """
    folder = cache.root / "tools" / f"pip-{json_digest(python.path, python.version)[:16]}"
    cache.folder(folder, lambda place: make_venv_with_pip(python, place))
    start = ("-c", _PIP_ELSEWHERE, python.architecture) if python.architecture else ("-m", "pip")
    return Pip((str(folder / "bin" / "python"), *start), python.target, python.architecture)


def make_venv_with_pip(python: Python, place: Path) -> None:
    """Create a venv with a pip for ``python``."""
    result = run([python.path, "-I", "-m", "venv", str(place)], limit_s=300.0)
    if not result.exit.ok:  # Debian packages ensurepip separately
        result = run(
            [uv_program(), "venv", "--seed", "--allow-existing", "--python", python.path, str(place)], limit_s=300.0
        )
    if not result.exit.ok:
        minor = ".".join(python.version.split(".")[:2])
        raise EngineError(
            f"cannot create a venv with {python.path}: {result.last_words(2)}",
            remedy=f"install its venv module: `apt-get install python{minor}-venv`",
        )


def is_reachable(url: str, seconds: float = 8.0) -> bool:
    """Return whether an index responds; proxies and pip's certificate bundle are used as in pip."""
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    try:
        context = ssl.create_default_context(cafile=bundle)
        request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "envmatrix"})  # noqa: S310 - pip indexes
        with urllib.request.urlopen(request, timeout=seconds, context=context):  # noqa: S310
            return True
    except urllib.error.HTTPError as error:
        return error.code not in {407, 502, 503, 504}
    except (OSError, ValueError):
        return False


def _failure(task: str, result: Finished, request: ResolveRequest, unreachable: Sequence[str]) -> EnvmatrixError:
    unreachable_note = f" (unreachable indexes: {', '.join(unreachable)})" if unreachable else ""
    error_lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    cause = "\n".join(error_lines[-3:]) or result.last_words(3) or str(result.exit)
    message = f"pip could not {task} {', '.join(request.requirements)}{unreachable_note}:\n{cause}"
    known = yaml.safe_load(_REMEDIES.read_text(encoding="utf-8"))
    remedies = [entry["remedy"] for entry in known if re.search(entry["message"], result.stderr)]
    is_conflict = remedies[:1] == [known[0]["remedy"]]
    remedy = remedies[0] if remedies and (is_conflict or not unreachable) else _DEFAULT_REMEDY
    place = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - where pip itself unpacks
    return tool_error(result.stderr + result.stdout, place, message, remedy)


def _pin(metadata: Mapping[str, str], download_info: Mapping[str, Any], **_: object) -> PinnedPackage:
    """Return a package of pip's report (https://pip.pypa.io/en/stable/reference/installation-report/)."""
    name, version = canonicalize_name(metadata["name"]), metadata["version"]
    archive = download_info.get("archive_info", {})
    sha256 = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
    if not sha256:
        raise InputError(
            f"{name} {version} comes from {download_info.get('url', '')}, which gives no sha256",
            remedy="use an index with hashes (PEP 503), or a folder of wheels (find-links)",
        )
    return PinnedPackage(name, version, sha256)


def _mismatch(result: Finished, pins: Sequence[PinnedPackage]) -> EnvmatrixError | None:
    expected = re.search(r"Expected sha256 ([0-9a-f]{64})", result.stderr)
    actual_hash = re.search(r"Got\s+([0-9a-f]{64})", result.stderr)
    pin = next((pin for pin in pins if expected and pin.sha256 == expected[1]), None)
    return wrong_hash_error(pin, actual_hash[1] if actual_hash else "something else") if pin else None


def wrong_hash_error(pin: PinnedPackage, actual: str) -> EnvmatrixError:
    """Return the error for a package whose hash differs from the lock."""
    return InputError(
        f"the sha256 of {pin} does not match the lock\n  lock: {pin.sha256}\n  file: {actual}",
        where=pin.lock_file_and_line,
        remedy="if the package was replaced on purpose, run `envmatrix lock`; otherwise do not use it",
    )
