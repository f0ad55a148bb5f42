"""The images of a run: prepared from the locks of each side, given by a pack, and held to what the run began with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, has_stamp
from envmatrix.build.file_listing import listing_differences
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Engine, Prepared, check_quota, library_path
from envmatrix.engines.build_record import prepared_fields, prepared_from
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import Environment, Library, all_libraries
from envmatrix.results import Run, RunFolder, read_json, write_whole
from envmatrix.system import project
from envmatrix.system.progress import Heartbeat, ProgressCallback
from envmatrix.system.shared_files import exists

#: Images that a run did not build (they came with a pack), beside its run.json.
_SUPPLIED_IMAGES_FILE = "images.json"
#: What the images of each side are made from, in the folder of a run that compares two.
_SIDES_FOLDER = "sides"

#: So many of the files that differ are named.
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
    """What makes the images of one side: engines that find its locks, and the libraries that every image holds."""

    engines: Mapping[str, Engine]
    libraries: tuple[Library, ...]


def prepare_images(
    environments: Mapping[str, Environment],
    engines: Mapping[str, Engine],
    libraries: tuple[Library, ...],
    progress: ProgressCallback,
    given: Images | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Build every image on every engine; return what is ready and, per (environment, engine), why it is not.

    ``given`` (image, engine) is ready already.
    """
    prepared_images: dict[tuple[str, str], Prepared] = dict(given or {})
    unavailable: dict[tuple[str, str], str] = {}
    failures: dict[tuple[str, str], str] = {}
    for engine in engines.values():
        for env in environments.values():
            key = (env.image_key, engine.name)
            try:
                if key not in prepared_images and key not in failures:
                    with Heartbeat(progress, f"image {env.image.name} is prepared for {engine.name}"):
                        prepared_images[key] = engine.prepare(env.image, libraries, progress)
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


def check_preloaded_libraries(prepared: Prepared, env: Environment, *, here: bool) -> None:
    """Find every library that ``env`` preloads, or raise SkipEnvironmentError with the install lines.

    ``here``: an absolute path is one of this machine, and not one inside an image.
    """
    for key, file in env.preload:
        path = library_path(prepared, key, file)
        if here and "/" in path and not Path(path).is_file():
            raise SkipEnvironmentError(f"no such file: {path}", remedy="correct the path in `preload:`, or install it")


def open_engines(names: Iterable[str], places: BuildPaths) -> dict[str, Engine]:
    """Find the engines and make sure that each can be used here."""
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
    """Prepare the images of every side (None: the run has but one) with its own maker; see ``prepare_images``."""
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
    """Return what makes the images of a run that was begun: locks beside ``matrix``, or those kept of each side."""
    names = tuple(dict.fromkeys(arm.engine for arm in run.arms))
    if not run.sides:
        return {None: ImageBuilder(open_engines(names, build_places(matrix, bench)), run_libraries(folder, run))}
    return {
        name: ImageBuilder(open_engines(names, build_places(side_matrix_path(folder, name), bench)), side.libraries)
        for name, side in run.sides.items()
    }


def save_side_matrix(folder: RunFolder, side: str, matrix: str, locks: Path) -> None:
    """Keep what the images of a side are made from, so that ``resume`` needs neither worktree nor checkout."""
    matrix_file = side_matrix_path(folder, side)
    locks_folder = matrix_file.parent / "containers" / "locks"
    locks_folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(locks.glob("*.txt")):
        shutil.copyfile(file, locks_folder / file.name)
    write_whole(matrix_file, matrix)


def side_matrix_path(folder: RunFolder, side: str) -> Path:
    """Return the matrix of a side, in the run's folder; its locks lie beside it."""
    return folder.path / _SIDES_FOLDER / side / "matrix.yaml"


def run_libraries(folder: RunFolder, run: Run) -> tuple[Library, ...]:
    """Return the libraries that a run's images hold: those of its whole matrix, also of levels that it left out."""
    if run.libraries is not None:
        return run.libraries
    return all_libraries(parse(str(folder.names.real(folder.matrix())), folder.run_file, begun=True))


def check_images_unchanged(run: Run, prepared_images: Mapping[tuple[str, str], Prepared]) -> None:
    """Raise InputError for an image that holds other versions than when the run began: one run, one set of bits."""
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
    """Return the digest of the files of each image that a run was begun without one of, by an older envmatrix."""
    digests = {
        f"{image}@{engine}": prepared.facts.get("files_digest") for (image, engine), prepared in prepared_images.items()
    }
    unlisted_images = {key for key, facts in run.images.items() if "files_digest" not in facts}
    return {key: files for key, files in digests.items() if files and key in unlisted_images}


def _changed_files_text(old_digest: str, new_digest: str | None) -> str:
    """Say which files an image has otherwise than before, as far as this machine knows both."""
    changed_files = listing_differences(Cache(project.cache_folder()), old_digest, new_digest) if new_digest else []
    if not changed_files:
        return f"the digest of its files was {old_digest}, and is now {new_digest or 'not known'}"
    omitted_text = f" and {len(changed_files) - _MAX_NAMED_FILES} more" if len(changed_files) > _MAX_NAMED_FILES else ""
    return f"{len(changed_files)} of its files differ: {', '.join(changed_files[:_MAX_NAMED_FILES])}{omitted_text}"


def save_supplied_images(folder: RunFolder, supplied: Mapping[tuple[str, str], Prepared]) -> None:
    """Note, beside run.json, which images were given, so that ``resume`` uses the same ones."""
    if supplied:
        write_whole(
            folder.path / _SUPPLIED_IMAGES_FILE,
            json.dumps([prepared_fields(prepared) for prepared in supplied.values()]) + "\n",
        )


def load_supplied_images(folder: RunFolder) -> dict[tuple[str, str], Prepared]:
    """Return the images that a run was given; an InputError names one that is gone."""
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
    """Return the folder of a matrix's own locks, whether it is there or not."""
    return matrix_path.resolve().parent / "containers" / "locks"


def build_places(matrix_path: Path, bench: Path) -> BuildPaths:
    """Return where engines find locks and bench/, and where they build. Locks beside the matrix come first."""
    own_locks = matrix_locks_folder(matrix_path)
    locks = own_locks if own_locks.is_dir() else project.locks_folder()
    return BuildPaths(Cache(project.cache_folder()), locks, bench)
