"""The images of a run: prepared from the locks of each side, given by a pack, and held to what the run began with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, has_stamp
from envmatrix.build.file_listing import differences
from envmatrix.build.paths import Places
from envmatrix.engines.base import Engine, Prepared, check_quota, library_path
from envmatrix.engines.build_record import prepared_from, recorded
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import Environment, Library, all_libraries
from envmatrix.results import Run, RunFolder, read_json, write_whole
from envmatrix.system import project
from envmatrix.system.progress import Heartbeat, ProgressCallback
from envmatrix.system.shared_files import exists

#: Images that a run did not build (they came with a pack), beside its run.json.
_GIVEN = "images.json"
#: What the images of each side are made from, in the folder of a run that compares two.
_SIDES = "sides"

#: So many of the files that differ are named.
_FEW = 5
_OTHER_VERSIONS = "check out the locks (containers/locks) that began it, or begin a new run"
_OTHER_PACKAGES = "put the packages of the interpreter back as they were, or begin a new run"
_OTHER_BASE = "check out the envmatrix that began it, which has or makes that base, or begin a new run"
_OTHER_FILES = (
    "build with the envmatrix and on the base that began it (run.json names both), or begin a new run; "
    "`envmatrix reproduce --rebuild` measures with other bits and lists what differs"
)

Images = Mapping[tuple[str, str], Prepared]


@dataclass(frozen=True)
class Maker:
    """What makes the images of one side: engines that find its locks, and the libraries that every image holds."""

    engines: Mapping[str, Engine]
    libraries: tuple[Library, ...]


def prepare_images(
    chosen: Mapping[str, Environment],
    engines: Mapping[str, Engine],
    libraries: tuple[Library, ...],
    progress: ProgressCallback,
    given: Images | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Build every image on every engine; return what is ready and, per (environment, engine), why it is not.

    ``given`` (image, engine) is ready already.
    """
    ready: dict[tuple[str, str], Prepared] = dict(given or {})
    missing: dict[tuple[str, str], str] = {}
    failures: dict[tuple[str, str], str] = {}
    for engine in engines.values():
        for env in chosen.values():
            key = (env.image_key, engine.name)
            try:
                if key not in ready and key not in failures:
                    with Heartbeat(progress, f"image {env.image.name} is prepared for {engine.name}"):
                        ready[key] = engine.prepare(env.image, libraries, progress)
                if key in ready:
                    check_libraries(ready[key], env, here=engine.shares_files)
                    check_quota(engine, env)
            except (SkipEnvironmentError, EngineError) as error:
                if key not in ready:
                    failures[key] = str(error)
                missing[env.name, engine.name] = str(error)
            if key in failures:
                missing[env.name, engine.name] = failures[key]
    return ready, missing


def check_libraries(prepared: Prepared, env: Environment, *, here: bool) -> None:
    """Find every library that ``env`` preloads, or raise SkipEnvironmentError with the install lines.

    ``here``: an absolute path is one of this machine, and not one inside an image.
    """
    for key, file in env.preload:
        path = library_path(prepared, key, file)
        if here and "/" in path and not Path(path).is_file():
            raise SkipEnvironmentError(f"{path} is not here", remedy="correct the path in `preload:`, or install it")


def open_engines(names: Iterable[str], places: Places) -> dict[str, Engine]:
    """Find the engines and make sure that each can be used here."""
    engines = {name: find_engine(name, places) for name in names}
    for name, engine in engines.items():
        reason = engine.unavailable()
        if reason:
            raise EngineError(f"engine {name} cannot be used here: {reason}", remedy="`envmatrix doctor` says more")
    return engines


def prepare_sides(
    chosen: Mapping[str, Environment],
    makers: Mapping[str | None, Maker],
    progress: ProgressCallback,
    given: Images | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Prepare the images of every side (None: the run has but one) with its own maker; see ``prepare_images``."""
    ready: dict[tuple[str, str], Prepared] = dict(given or {})
    missing: dict[tuple[str, str], str] = {}
    for side, maker in makers.items():
        own = {name: environment for name, environment in chosen.items() if environment.side == side}
        found, without = prepare_images(own, maker.engines, maker.libraries, progress, ready)
        ready |= found
        missing |= without
    return ready, missing


def makers_of(folder: RunFolder, run: Run, matrix: Path, bench: Path) -> dict[str | None, Maker]:
    """Return what makes the images of a run that was begun: locks beside ``matrix``, or those kept of each side."""
    names = tuple(dict.fromkeys(arm.engine for arm in run.arms))
    if not run.sides:
        return {None: Maker(open_engines(names, places_of(matrix, bench)), libraries_of(folder, run))}
    return {
        name: Maker(open_engines(names, places_of(kept_matrix(folder, name), bench)), side.libraries)
        for name, side in run.sides.items()
    }


def keep_side(folder: RunFolder, side: str, matrix: str, locks: Path) -> None:
    """Keep what the images of a side are made from, so that ``resume`` needs neither worktree nor checkout."""
    kept = kept_matrix(folder, side)
    beside = kept.parent / "containers" / "locks"
    beside.mkdir(parents=True, exist_ok=True)
    for file in sorted(locks.glob("*.txt")):
        shutil.copyfile(file, beside / file.name)
    write_whole(kept, matrix)


def kept_matrix(folder: RunFolder, side: str) -> Path:
    """Return the matrix of a side, in the run's folder; its locks lie beside it."""
    return folder.path / _SIDES / side / "matrix.yaml"


def libraries_of(folder: RunFolder, run: Run) -> tuple[Library, ...]:
    """Return the libraries that a run's images hold: those of its whole matrix, also of levels that it left out."""
    if run.libraries is not None:
        return run.libraries
    return all_libraries(parse(str(folder.names.real(folder.matrix())), folder.run_file, begun=True))


def check_same_bits(run: Run, ready: Mapping[tuple[str, str], Prepared]) -> None:
    """Raise InputError for an image that holds other versions than when the run began: one run, one set of bits."""
    for (image, engine), prepared in ready.items():
        for name, before in run.images.get(f"{image}@{engine}", {}).items():
            now = prepared.facts.get(name)
            if name.startswith(("package ", "system ", "base_digest", "modules", "over_packages")) and now != before:
                raise InputError(
                    f"image {image} on {engine} is not what this run began with: {name} is {now or 'gone'}, "
                    f"and was {before}",
                    remedy=_remedy(name),
                )
            if name == "files_digest" and now != before:
                raise InputError(
                    f"image {image} on {engine} is not what this run began with: {_other_files(before, now)}",
                    remedy=_OTHER_FILES,
                )


def _remedy(fact: str) -> str:
    if fact.startswith(("over_packages", "package conda:")):
        return _OTHER_PACKAGES
    return _OTHER_BASE if fact == "base_digest" else _OTHER_VERSIONS


def unlisted(run: Run, ready: Images) -> dict[str, str]:
    """Return the digest of the files of each image that a run was begun without one of, by an older envmatrix."""
    found = {f"{image}@{engine}": prepared.facts.get("files_digest") for (image, engine), prepared in ready.items()}
    without = {key for key, facts in run.images.items() if "files_digest" not in facts}
    return {key: files for key, files in found.items() if files and key in without}


def _other_files(before: str, now: str | None) -> str:
    """Say which files an image has otherwise than before, as far as this machine knows both."""
    found = differences(Cache(project.cache_folder()), before, now) if now else []
    if not found:
        return f"the digest of its files is {now or 'not known'}, and was {before}"
    rest = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
    return f"{len(found)} of its files differ: {', '.join(found[:_FEW])}{rest}"


def keep_given(folder: RunFolder, given: Mapping[tuple[str, str], Prepared]) -> None:
    """Note, beside run.json, which images were given, so that ``resume`` uses the same ones."""
    if given:
        write_whole(folder.path / _GIVEN, json.dumps([recorded(prepared) for prepared in given.values()]) + "\n")


def kept_given(folder: RunFolder) -> dict[tuple[str, str], Prepared]:
    """Return the images that a run was given; an InputError names one that is gone."""
    file = folder.path / _GIVEN
    bodies = read_json(file) if exists(file) else []
    found = [prepared_from(body) for body in bodies] if isinstance(bodies, list) else []
    for prepared in found:
        file = Path(prepared.reference) if prepared else folder.path
        if prepared and not (exists(file) and has_stamp(file, prepared.stamp)):
            raise InputError(
                f"image {prepared.reference}, which this run was begun with, is gone, or another file lies there",
                remedy="`envmatrix reproduce ARCHIVE --check` unpacks it again",
            )
    return {(prepared.image, prepared.engine): prepared for prepared in found if prepared}


def locks_beside(matrix_path: Path) -> Path:
    """Return the folder of a matrix's own locks, whether it is there or not."""
    return matrix_path.resolve().parent / "containers" / "locks"


def places_of(matrix_path: Path, bench: Path) -> Places:
    """Return where engines find locks and bench/, and where they build. Locks beside the matrix come first."""
    beside = locks_beside(matrix_path)
    locks = beside if beside.is_dir() else project.locks_folder()
    return Places(Cache(project.cache_folder()), locks, bench)
