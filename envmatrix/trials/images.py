"""Images of a run: prepared from each side's locks or supplied by a pack, and compared with the run's start."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, has_stamp
from envmatrix.build.images.file_listing import listing_differences
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Engine, Prepared, check_architecture, check_quota, check_usable, library_path
from envmatrix.engines.build_record import prepared_fields, prepared_from
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EngineError, EnvmatrixError, InputError, SkipEnvironmentError
from envmatrix.plan.environment import Environment, Library
from envmatrix.results import Run, RunFolder, read_json, write_whole
from envmatrix.system import resource_paths
from envmatrix.system.progress import Heartbeat, ProgressCallback
from envmatrix.system.reading_with_retries import exists

#: Images that a run did not build but got from a pack, next to its run.json.
_SUPPLIED_IMAGES_FILE = "images.json"
#: The matrix and locks of each side, in the folder of a run that compares two.
_SIDES_FOLDER = "sides"

#: The most changed files listed by name.
_MAX_NAMED_FILES = 5
_VERSIONS_REMEDY = "check out the locks (containers/locks) that started it, or start a new run"
_PACKAGES_REMEDY = "restore the packages of the interpreter as they were, or start a new run"
#: First words of the facts of an image that must not change during a run -> the remedy; the first that fits.
_REMEDIES = {
    "over_packages": _PACKAGES_REMEDY,
    "package conda:": _PACKAGES_REMEDY,
    **dict.fromkeys(("package ", "system ", "modules"), _VERSIONS_REMEDY),
    "base_digest": "check out the envmatrix that started it, which has or can build that base, or start a new run",
    "files_digest": "build with the envmatrix and base image that started it (see run.json), or start a new run; "
    "`envmatrix reproduce --rebuild` measures with other files and lists the differences",
}

Images = Mapping[tuple[str, str], Prepared]


@dataclass(frozen=True)
class ImageBuilder:
    """The engines, with their locks, and the libraries that build the images of one side."""

    engines: Mapping[str, Engine]
    libraries: tuple[Library, ...]

    @classmethod
    def open(
        cls, engine_names: Iterable[str], libraries: tuple[Library, ...], matrix: Path, bench: Path
    ) -> ImageBuilder:
        """Return the builder with the locks next to ``matrix``. Raises EngineError if an engine cannot be used here."""
        return cls(open_engines(engine_names, build_places(matrix, bench)), libraries)


def prepare_images(
    environments: Mapping[str, Environment],
    builders: Mapping[str | None, ImageBuilder],
    progress: ProgressCallback,
    given: Images | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Build every image of each side (None: the only one) on every engine of its builder.

    Return the ready images, and reasons per unavailable (environment, engine). ``given`` images, by (image, engine),
    are ready already.
    """
    prepared_images: dict[tuple[str, str], Prepared] = dict(given or {})
    failures: dict[tuple[str, str], EnvmatrixError] = {}
    unavailable: dict[tuple[str, str], str] = {}

    def prepare(environment: Environment, engine: Engine, held: tuple[Library, ...]) -> None:
        check_architecture(environment)
        key = (environment.image_key, engine.name)
        if key in failures:
            raise failures[key]
        if key not in prepared_images:
            try:
                with Heartbeat(progress, f"image {environment.image.name} is prepared for {engine.name}"):
                    prepared_images[key] = engine.prepare(environment.image, held, progress)
            except (SkipEnvironmentError, EngineError) as error:
                failures[key] = error
                raise
        check_preloaded_libraries(prepared_images[key], environment, here=engine.shares_files)
        check_quota(engine, environment)

    for side, builder in builders.items():
        side_environments = [environment for environment in environments.values() if environment.side == side]
        for engine in builder.engines.values():
            held = libraries_for_images(engine, builder.libraries, side_environments)
            for environment in side_environments:
                try:
                    prepare(environment, engine, held)
                except (SkipEnvironmentError, EngineError) as error:
                    unavailable[environment.name, engine.name] = str(error)
    return prepared_images, unavailable


def libraries_for_images(
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
    for engine in engines.values():
        check_usable(engine)
    return engines


def side_image_builders(folder: RunFolder, run: Run, matrix: Path, bench: Path) -> dict[str | None, ImageBuilder]:
    """Return the builders of an existing run's images: locks next to ``matrix``, or those saved for each side."""
    names = tuple(dict.fromkeys(arm.engine for arm in run.arms))
    if not run.sides:
        return {None: ImageBuilder.open(names, run.libraries, matrix, bench)}
    return {
        name: ImageBuilder.open(names, side.libraries, side_matrix_path(folder, name), bench)
        for name, side in run.sides.items()
    }


def side_matrix_path(folder: RunFolder, side: str) -> Path:
    """Return the path of a side's matrix in the run's folder; its locks are next to it."""
    return folder.path / _SIDES_FOLDER / side / "matrix.yaml"


def check_images_unchanged(run: Run, prepared_images: Mapping[tuple[str, str], Prepared]) -> None:
    """Raise InputError for an image whose versions or files changed since the run began."""
    for (image, engine), prepared in prepared_images.items():
        for name, recorded_value in run.images.get(f"{image}@{engine}", {}).items():
            current_value = prepared.facts.get(name)
            remedy = next((remedy for start, remedy in _REMEDIES.items() if name.startswith(start)), None)
            if remedy is None or current_value == recorded_value:
                continue
            change = f"{name} was {recorded_value}, and is now {current_value or 'gone'}"
            if name == "files_digest":
                change = _changed_files_text(recorded_value, current_value)
            raise InputError(f"image {image} on {engine} has changed since this run started: {change}", remedy=remedy)


def _changed_files_text(old_digest: str, new_digest: str | None) -> str:
    """Describe which files of an image changed, if this machine knows both listings."""
    changed_files = (
        listing_differences(Cache(resource_paths.cache_folder()), old_digest, new_digest) if new_digest else []
    )
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
    locks = own_locks if own_locks.is_dir() else resource_paths.bundled_package_locks()
    return BuildPaths(Cache(resource_paths.cache_folder()), locks, bench)
