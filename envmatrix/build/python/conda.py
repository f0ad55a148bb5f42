"""Solve, lock and install environments of conda packages with py-rattler; conda itself is not needed.

Solutions are kept in the cache with a sha256 per package, so that later runs use the same packages. The format is that
of pixi.lock (https://pixi.sh, *lockfile*). Install scripts of packages are not run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from envmatrix.build.cache import Cache, file_digest, json_digest, tool_error
from envmatrix.build.python.venvs import share_bytecode
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.plan.environment import Image
from envmatrix.system.progress import ProgressCallback

if TYPE_CHECKING:
    from rattler import RepoDataRecord

_DEFAULT_CHANNELS = ("conda-forge",)
_DONE = TypeVar("_DONE")


def ensure_conda_image(cache: Cache, image: Image, progress: ProgressCallback) -> tuple[Image, dict[str, str]]:
    """Create or reuse the conda environment of an image.

    Return the image with that environment's Python, and facts about its lock for run.json; the packages are listed by
    inspecting the environment. Raises SkipEnvironmentError without py-rattler, and EngineError if solving, download or
    installation fails.
    """
    try:
        import rattler
    except ImportError as error:
        raise SkipEnvironmentError(
            f"conda: cannot solve {_package_list(image)}: py-rattler is not usable ({error})",
            remedy=f"{sys.executable} -m pip install py-rattler",
        ) from error
    platform = str(rattler.Subdir.current())
    lock = cache.root / "conda" / "locks" / f"{json_digest(image.conda, _channels(image), platform)[:24]}.lock"
    if not lock.exists():
        progress(f"solving {_package_list(image)} with {', '.join(_channels(image))}")
        records = _solve(cache, image, platform)
        with cache.scratch("lock") as scratch:
            _write_lock(records, _channels(image), platform, scratch / lock.name)
            lock.parent.mkdir(parents=True, exist_ok=True)
            (scratch / lock.name).replace(lock)
    digest = file_digest(lock)
    folder = cache.root / "conda" / "environments" / digest[:24]
    cache.folder(folder, lambda place: _install(cache, _read_lock(lock), place, folder, progress))
    python = folder / "bin" / "python"
    if not python.exists():
        raise EngineError(
            f"conda: {_package_list(image)} do not include Python",
            remedy="add python=3.11, or another version, to them",
        )
    facts = {"lock": lock.name, "lock_digest": f"sha256:{digest}"}
    return replace(image, interpreter=str(python), conda=(), channels=()), facts


def _channels(image: Image) -> tuple[str, ...]:
    return image.channels or _DEFAULT_CHANNELS


def _package_list(image: Image) -> str:
    return ", ".join(image.conda)


def _solve(cache: Cache, image: Image, platform: str) -> list[RepoDataRecord]:
    """Return the packages that satisfy the request on this kind of machine."""
    from rattler import Gateway, VirtualPackage, solve

    platforms: list[Any] = [platform, "noarch"]
    gateway = Gateway(cache_dir=cache.root / "conda" / "channels")
    return _run_rattler(
        f"cannot get {_package_list(image)} from {', '.join(_channels(image))}",
        "check the spelling of the channels (`channels:` takes names, URLs and folders) and the network",
        lambda: solve(
            list(_channels(image)),
            list(image.conda),
            gateway=gateway,
            platforms=platforms,
            virtual_packages=VirtualPackage.detect(),
        ),
        cache,
    )


def _write_lock(records: Sequence[RepoDataRecord], channels: Sequence[str], platform: str, file: Path) -> None:
    from rattler import Channel, LockChannel, LockFile, LockPlatform

    where = LockPlatform(platform)
    lock = LockFile([where])
    lock.set_channels("default", [LockChannel(Channel(name).base_url) for name in channels])
    for record in records:
        lock.add_conda_package("default", where, record)
    lock.to_path(file)


def _read_lock(lock: Path) -> list[RepoDataRecord]:
    from rattler import LockFile

    lock_file = LockFile.from_path(lock)
    (platform,) = lock_file.platforms()
    environment = lock_file.default_environment()
    return list((environment.conda_repodata_records_for_platform(platform) if environment else None) or ())


def _install(
    cache: Cache, records: list[RepoDataRecord], place: Path, folder: Path, progress: ProgressCallback
) -> None:
    """Install into ``place``, which is later renamed to ``folder``: packages contain their final path."""
    from rattler import install

    progress(f"installing {len(records)} conda packages")
    _check_local_packages_match_lock(records)
    _run_rattler(
        "conda packages cannot be installed",
        f"if a cached file may be damaged, remove {cache.root / 'conda'} and try again",
        lambda: install(
            records,
            place,
            cache_dir=cache.root / "conda" / "packages",
            show_progress=False,
            execute_link_scripts=False,
            alternative_target_prefix=folder,
        ),
        cache,
    )
    if (place / "bin" / "python").exists():
        share_bytecode(cache, place)


def _check_local_packages_match_lock(records: Sequence[RepoDataRecord]) -> None:
    """Reject a local package file that differs from the lock: rattler checks only what it downloads."""
    for record in records:
        if not record.url.startswith("file://") or record.sha256 is None:
            continue
        file = Path(record.url.removeprefix("file://"))
        if file.exists() and file_digest(file) != record.sha256.hex():
            raise EngineError(
                f"{file} differs from the locked package (sha256:{record.sha256.hex()})",
                remedy="restore the original file, or remove the lock from the cache to solve again",
            )


def _run_rattler(task: str, remedy: str, start: Callable[[], Awaitable[_DONE]], cache: Cache) -> _DONE:
    """Run a rattler coroutine; catch every exception, because rattler's errors have no common base class."""

    async def whole() -> _DONE:
        return await start()

    try:
        return asyncio.run(whole())
    except Exception as error:
        message = f"conda: {task}: {' '.join(str(error).split())}"
        raise tool_error(str(error), cache.root, message, remedy) from error
