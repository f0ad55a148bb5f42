"""Images of a run: prepared from each side's locks or supplied by a pack, and compared with the run's start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, has_stamp
from envmatrix.build.images.file_listing import listing_differences
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Engine, Prepared, check_architecture, check_quota, library_path
from envmatrix.engines.build_record import prepared_fields, prepared_from
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import Environment, Library, all_libraries
from envmatrix.results import Run, RunFolder, read_json, write_whole
from envmatrix.system import project
from envmatrix.system.progress import Heartbeat, ProgressCallback
from envmatrix.system.shared_files import exists

#: Images that a run did not build but got from a pack, next to its run.json.
_SUPPLIED_IMAGES_FILE = "images.json"
#: The matrix and locks of each side, in the folder of a run that compares two.
_SIDES_FOLDER = "sides"

#: The most changed files listed by name.
_MAX_NAMED_FILES = 5
_VERSIONS_REMEDY = "check out the locks (containers/locks) that started it, or start a new run"
_PACKAGES_REMEDY = "restore the packages of the interpreter as they were, or start a new run"
_BASE_REMEDY = "check out the envmatrix that started it, which has or can build that base, or start a new run"
_FILES_REMEDY = (
    "build with the envmatrix and base image that started it (see run.json), or start a new run; "
    "`envmatrix reproduce --rebuild` measures with other files and lists the differences"
)

Images = Mapping[tuple[str, str], Prepared]


@dataclass(frozen=True)
class ImageBuilder:
    """The engines, with their locks, and the libraries that build the images of one side."""

    engines: Mapping[str, Engine]
    libraries: tuple[Library, ...]


def prepare_images(
    environments: Mapping[str, Environment],
    engines: Mapping[str, Engine],
    libraries: tuple[Library, ...],
    progress: ProgressCallback,
    given: Images | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Build every image on every engine; return the ready images, and reasons per unavailable (environment, engine).

    ``given`` images, by (image, engine), are ready already.
    """
    prepared_images: dict[tuple[str, str], Prepared] = dict(given or {})
    unavailable: dict[tuple[str, str], str] = {}
    failures: dict[tuple[str, str], str] = {}
    for engine in engines.values():
        held = held_libraries(engine, libraries, environments.values())
        for env in environments.values():
            key = (env.image_key, engine.name)
            try:
                check_architecture(env)
            except SkipEnvironmentError as error:  # its image may serve other environments
                unavailable[env.name, engine.name] = str(error)
                continue
            try:
                if key not in prepared_images and key not in failures:
                    with Heartbeat(progress, f"image {env.image.name} is prepared for {engine.name}"):
                        prepared_images[key] = engine.prepare(env.image, held, progress)
                if key in prepared_images:
                    check_preloaded_libraries(prepared_images[key], env, here=engine.shares_files)
                    check_quota(engine, env)
            except (SkipEnvironmentError, EngineError) as error:
                if key not in prepared_images:
                    failures[key] = str(error)
                unavailable[env.name, engine.name] = str(error)
            if key in failures:
                unavailable[env.name, engine.name] = failures[key]
    return prepared_images, unavailable


def held_libraries(
    engine: Engine, libraries: tuple[Library, ...], environments: Iterable[Environment]
) -> tuple[Library, ...]:
    """Return the libraries that a run's images hold: all, or on this machine those that its environments preload."""
    if not engine.shares_files:
        return libraries
    preloaded = {key for environment in environments for key, _ in environment.preload}
    return tuple(library for library in libraries if library.key in preloaded)


def check_preloaded_libraries(prepared: Prepared, env: Environment, *, here: bool) -> None:
    """Find every library that ``env`` preloads. Raises SkipEnvironmentError with the install lines if one is missing.

    ``here``: an absolute path is on this machine, not inside an image.
    """
    for key, file in env.preload:
        path = library_path(prepared, key, file)
        if here and "/" in path and not Path(path).is_file():
            raise SkipEnvironmentError(f"no such file: {path}", remedy="correct the path in `preload:`, or install it")


def open_engines(names: Iterable[str], places: BuildPaths) -> dict[str, Engine]:
    """Return the engines by name. Raises EngineError if one cannot be used here."""
    engines = {name: find_engine(name, places) for name in names}
    for name, engine in engines.items():
        reason = engine.unavailable()
        if reason:
            raise EngineError(
                f"engine {name} cannot be used here: {reason}", remedy="run `envmatrix doctor` for details"
            )
    return engines


def prepare_side_images(
    environments: Mapping[str, Environment],
    builders: Mapping[str | None, ImageBuilder],
    progress: ProgressCallback,
    given: Images | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Prepare the images of every side (None: the only one) with its own builder; see ``prepare_images``."""
    prepared_images: dict[tuple[str, str], Prepared] = dict(given or {})
    unavailable: dict[tuple[str, str], str] = {}
    for side, builder in builders.items():
        side_environments = {
            name: environment for name, environment in environments.items() if environment.side == side
        }
        side_images, side_unavailable = prepare_images(
            side_environments, builder.engines, builder.libraries, progress, prepared_images
        )
        prepared_images |= side_images
        unavailable |= side_unavailable
    return prepared_images, unavailable


def side_image_builders(folder: RunFolder, run: Run, matrix: Path, bench: Path) -> dict[str | None, ImageBuilder]:
    """Return the builders of an existing run's images: locks next to ``matrix``, or those saved for each side."""
    names = tuple(dict.fromkeys(arm.engine for arm in run.arms))
    if not run.sides:
        return {None: ImageBuilder(open_engines(names, build_places(matrix, bench)), run_libraries(folder, run))}
    return {
        name: ImageBuilder(open_engines(names, build_places(side_matrix_path(folder, name), bench)), side.libraries)
        for name, side in run.sides.items()
    }


def save_side_matrix(folder: RunFolder, side: str, matrix: str, locks: Path) -> None:
    """Save the matrix and locks of a side, so that ``resume`` needs neither worktree nor checkout."""
    matrix_file = side_matrix_path(folder, side)
    locks_folder = matrix_file.parent / "containers" / "locks"
    locks_folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(locks.glob("*.txt")):
        shutil.copyfile(file, locks_folder / file.name)
    write_whole(matrix_file, matrix)


def side_matrix_path(folder: RunFolder, side: str) -> Path:
    """Return the path of a side's matrix in the run's folder; its locks are next to it."""
    return folder.path / _SIDES_FOLDER / side / "matrix.yaml"


def run_libraries(folder: RunFolder, run: Run) -> tuple[Library, ...]:
    """Return the libraries in a run's images: those of its whole matrix, including levels that it does not use."""
    if run.libraries is not None:
        return run.libraries
    return all_libraries(parse(str(folder.names.real(folder.matrix())), folder.run_file, begun=True))


def check_images_unchanged(run: Run, prepared_images: Mapping[tuple[str, str], Prepared]) -> None:
    """Raise InputError for an image whose versions or files changed since the run began."""
    for (image, engine), prepared in prepared_images.items():
        for name, recorded_value in run.images.get(f"{image}@{engine}", {}).items():
            current_value = prepared.facts.get(name)
            if (
                name.startswith(("package ", "system ", "base_digest", "modules", "over_packages"))
                and current_value != recorded_value
            ):
                raise InputError(
                    f"image {image} on {engine} has changed since this run started: {name} was {recorded_value}, and "
                    f"is now {current_value or 'gone'}",
                    remedy=_remedy(name),
                )
            if name == "files_digest" and current_value != recorded_value:
                raise InputError(
                    f"image {image} on {engine} has changed since this run started: "
                    f"{_changed_files_text(recorded_value, current_value)}",
                    remedy=_FILES_REMEDY,
                )


def _remedy(fact: str) -> str:
    if fact.startswith(("over_packages", "package conda:")):
        return _PACKAGES_REMEDY
    return _BASE_REMEDY if fact == "base_digest" else _VERSIONS_REMEDY


def missing_file_digests(run: Run, prepared_images: Images) -> dict[str, str]:
    """Return the digests of image files that run.json lacks because an older envmatrix wrote it."""
    digests = {
        f"{image}@{engine}": prepared.facts.get("files_digest") for (image, engine), prepared in prepared_images.items()
    }
    unlisted_images = {key for key, facts in run.images.items() if "files_digest" not in facts}
    return {key: files for key, files in digests.items() if files and key in unlisted_images}


def _changed_files_text(old_digest: str, new_digest: str | None) -> str:
    """Describe which files of an image changed, if this machine knows both listings."""
    changed_files = listing_differences(Cache(project.cache_folder()), old_digest, new_digest) if new_digest else []
    if not changed_files:
        return f"the digest of its files was {old_digest}, and is now {new_digest or 'not known'}"
    omitted_text = f" and {len(changed_files) - _MAX_NAMED_FILES} more" if len(changed_files) > _MAX_NAMED_FILES else ""
    return f"{len(changed_files)} of its files differ: {', '.join(changed_files[:_MAX_NAMED_FILES])}{omitted_text}"


def save_supplied_images(folder: RunFolder, supplied: Mapping[tuple[str, str], Prepared]) -> None:
    """Save the supplied images next to run.json, so that ``resume`` uses the same ones."""
    if supplied:
        write_whole(
            folder.path / _SUPPLIED_IMAGES_FILE,
            json.dumps([prepared_fields(prepared) for prepared in supplied.values()]) + "\n",
        )


def load_supplied_images(folder: RunFolder) -> dict[tuple[str, str], Prepared]:
    """Return the supplied images of a run. Raises InputError for one that is gone."""
    file = folder.path / _SUPPLIED_IMAGES_FILE
    bodies = read_json(file) if exists(file) else []
    supplied = [prepared_from(body) for body in bodies] if isinstance(bodies, list) else []
    for prepared in supplied:
        file = Path(prepared.reference) if prepared else folder.path
        if prepared and not (exists(file) and has_stamp(file, prepared.stamp)):
            raise InputError(
                f"image {prepared.reference}, which this run started with, is gone or was replaced by another file",
                remedy="unpack it again: `envmatrix reproduce ARCHIVE --check`",
            )
    return {(prepared.image, prepared.engine): prepared for prepared in supplied if prepared}


def matrix_locks_folder(matrix_path: Path) -> Path:
    """Return the folder of a matrix's own locks, whether it exists or not."""
    return matrix_path.resolve().parent / "containers" / "locks"


def build_places(matrix_path: Path, bench: Path) -> BuildPaths:
    """Return the folders of locks, bench/ and builds for engines. Locks next to the matrix come first."""
    own_locks = matrix_locks_folder(matrix_path)
    locks = own_locks if own_locks.is_dir() else project.locks_folder()
    return BuildPaths(Cache(project.cache_folder()), locks, bench)
