"""Locks, images and build files of environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.api.matrix_and_run_lookup import PathLike, load_matrix
from envmatrix.build.debian.minimal_base import BASES, Suite, suite_for_python
from envmatrix.build.images.context import (
    BuildInputs,
    bench_digest,
    bootstrapped_base,
    gather_build_inputs,
    rooted,
    rooted_name,
    system_packages,
    write_context,
    write_one_layer_archive,
)
from envmatrix.build.images.definitions import APPTAINER, DOCKER, image_definition
from envmatrix.build.images.labels import OF_PUBLISHER, publisher_labels
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import BuildsImages, check_architecture, check_usable
from envmatrix.engines.catalog import AUTO, choose_engine, find_engine
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Matrix
from envmatrix.matrix.model import factorial_cells
from envmatrix.plan.environment import Environment, Image, all_images, all_libraries, resolve_environment
from envmatrix.results import write_whole
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.resource_paths import output_folder
from envmatrix.trials.experiment_setup import design_environments, find_design, snapshot_bench
from envmatrix.trials.images import ImageBuilder, build_places, matrix_locks_folder, prepare_images

#: Prefix of a word that names both a design and an environment: then it means the design.
_DESIGN_PREFIX = "design:"


@dataclass(frozen=True)
class BuildResult:
    """Result of a build. ``ready``: image -> location; ``missing``: environment -> reason; ``starts``: commands."""

    engine: str
    ready: Mapping[str, str]
    missing: Mapping[str, str]
    starts: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildContext:
    """The folder of a manual build, an archive of its base image for use without a registry, and that base.

    ``arguments`` is a file of build arguments (NAME=VALUE): the base, and values for labels.
    """

    folder: Path
    archive: Path
    base: str
    arguments: Path


def build(
    names: Sequence[str] = (),
    *,
    engine: str = "local",
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> BuildResult:
    """Build the environments of a design, or those named, unless they are built already.

    ``names`` is one design ('design:NAME' if an environment has the same name) or environments; none: the design
    'default'. With an engine that builds images, named environments become separate images in containers/ next to the
    matrix (in the current folder for the built-in matrix).
    Raises InputError, EngineError.
    """
    whole = load_matrix(matrix, progress)
    environments, is_design = _select_environments(
        whole, names or ["default"], this_host().facts_with_stand_ins(), progress
    )
    name = choose_engine(progress) if engine == AUTO else engine
    builder = ImageBuilder.open([name], all_libraries(whole), Path(whole.path), snapshot_bench()[1])
    if not is_design and isinstance(engine_here := builder.engines[name], BuildsImages):
        return _build_named(whole, list(environments.values()), name, engine_here, progress)
    prepared_images, unavailable = prepare_images(environments, {None: builder}, progress)
    return BuildResult(
        name,
        {image: prepared.reference for (image, _), prepared in prepared_images.items()},
        {environment: reason for (environment, _), reason in unavailable.items()},
    )


def _build_named(
    matrix: Matrix, environments: Sequence[Environment], name: str, engine: BuildsImages, progress: ProgressCallback
) -> BuildResult:
    """Build a separate image of each environment; files and bills of material go to containers/."""
    folder, libraries = output_folder(Path(matrix.path)) / "containers", all_libraries(matrix)
    for environment in environments:
        check_architecture(environment)
    images = [engine.build_named(environment, libraries, folder, progress) for environment in environments]
    return BuildResult(name, {}, {}, tuple(image.start for image in images))


def _select_environments(
    matrix: Matrix, names: Sequence[str], facts: Mapping[str, str], progress: ProgressCallback
) -> tuple[dict[str, Environment], bool]:
    """Return the environments of a design or those named, and whether ``names`` is a design.

    A name of both means the environment; ``progress`` then reports how to write the design.
    """
    designs = [name for name in names if _is_design_name(matrix, name, progress)]
    if not designs:
        return {name: resolve_environment(matrix, name, facts) for name in names}, False
    if len(names) > 1:
        raise InputError(
            f"{designs[0]!r} is a design, but you passed {len(names)} names",
            remedy="pass one design, or only environments",
        )
    design = find_design(matrix, designs[0].removeprefix(_DESIGN_PREFIX))
    return design_environments(matrix, design, facts), True


def _is_design_name(matrix: Matrix, name: str, progress: ProgressCallback) -> bool:
    if name in matrix.environments:
        if name in matrix.designs:
            progress(f"{name} is both an environment and a design; for the design, write {_DESIGN_PREFIX}{name}")
        return False
    if name in matrix.designs or name.startswith(_DESIGN_PREFIX):
        return True
    if not any(name in factorial_cells(design) for design in matrix.designs.values()):
        known_names = (*matrix.designs, *matrix.environments)
        raise InputError(f"no design or environment named {name!r}", remedy=suggestion(name, known_names))
    return False


def lock(
    environments: Sequence[str] = (),
    *,
    engine: str | None = None,
    architecture: str | None = None,
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> list[Path]:
    """Pin the contents of images and libraries, resolved with the host's own pip and apt.

    ``environments``: whose images (none: all). ``engine``: pin the system packages of this engine's images instead.
    Locks are made for this machine's architecture, for those that have locks already, and for ``architecture``.
    Returns the files written in containers/locks/ next to the matrix. Raises InputError, EngineError.
    """
    if engine and architecture:
        raise InputError(
            "system packages are pinned for this machine's architecture only",
            remedy=f"use `--engine {engine}` or `--architecture {architecture}`, not both",
        )
    whole = load_matrix(matrix, progress)
    place = replace(build_places(Path(whole.path), snapshot_bench()[1]), locks=matrix_locks_folder(Path(whole.path)))
    locks = Locks(place.locks, place.cache, progress)
    named_images = [resolve_environment(whole, name, {}).image for name in environments]
    images = tuple(({image.name: image for image in named_images} or all_images(whole)).values())
    if engine is None:
        architectures = dict.fromkeys([*locks.architectures(), *([architecture] if architecture else [])])
        libraries = all_libraries(whole)
        written_files = [path for one in architectures for path in locks.make(images, libraries, one)]
    else:
        builder = find_engine(engine, place)
        if not isinstance(builder, BuildsImages):
            raise InputError(
                f"engine {engine!r} does not build images",
                remedy="`envmatrix list engines` shows which engines build images",
            )
        check_usable(builder)
        written_files = [_pin_system(builder, image, place, locks, progress) for image in images if not image.on_host]
    return list(dict.fromkeys(written_files))


def _pin_system(
    engine: BuildsImages, image: Image, place: BuildPaths, locks: Locks, progress: ProgressCallback
) -> Path:
    """Pin the packages that an image adds to the engine's base image."""
    base = engine.base(image, progress)
    suite = Suite(base.suite, place.cache)
    packages = system_packages(image, suite)
    pins = suite.closure(packages, base.status)
    return locks.pin_system(suite.name_with_architecture, packages, base.choice, pins)


def write_definitions(
    names: Sequence[str] = (),
    *,
    output: PathLike | None = None,
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> list[Path]:
    """Write the Dockerfile and the Apptainer definition of each environment and return the files.

    ``names`` is one design or environments; none: every environment of the matrix. ``output`` is the folder (None:
    containers/ next to the matrix, or here for the built-in one). Raises InputError.
    """
    whole = load_matrix(matrix, progress)
    every = {name: resolve_environment(whole, name, {}) for name in (() if names else whole.environments)}
    environments = every or _select_environments(whole, names, {}, progress)[0]
    folder = Path(output) if output is not None else output_folder(Path(whole.path)) / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    files = definition_files(environments.values())
    for name, text in files.items():
        write_whole(folder / name, text)
    return [folder / name for name in files]


def write_build_context(
    environment: str, folder: PathLike, *, matrix: PathLike | None = None, progress: ProgressCallback = silent
) -> BuildContext:
    """Download and verify everything an environment's image needs into a new or empty ``folder``.

    Use it for a manual build without network. Raises InputError, EngineError.
    """
    whole, target = load_matrix(matrix, progress), Path(folder)
    image = resolve_environment(whole, environment, {}).image
    place = build_places(Path(whole.path), snapshot_bench()[1])
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is not an empty folder", remedy="pass a new folder, or empty this one")
    base, tar = bootstrapped_base(image, place, progress)
    ingredients = gather_build_inputs(place, image, all_libraries(whole), base, progress)
    write_context(ingredients, place.bench, target)
    archive = target.with_name(f"{target.name}-base.tar")
    with place.cache.scratch("context") as scratch:
        rooted(tar, scratch / "base.tar")  # so that a user without subordinate user ids can build from it
        write_one_layer_archive(scratch / "base.tar", archive, rooted_name(base.reference))
    arguments = target.with_name(f"{target.name}.args")
    write_whole(arguments, _arguments_text(ingredients, place, Path(whole.path).resolve().parent))
    return BuildContext(target, archive, base.choice, arguments)


def _arguments_text(ingredients: BuildInputs, place: BuildPaths, folder: Path) -> str:
    """Return the build arguments of a context in the format of `apptainer build --build-arg-file`."""
    publisher = publisher_labels(folder)
    arguments = {
        **ingredients.build_arguments(bench_digest(place)),
        **{argument: publisher[label] for label, argument in OF_PUBLISHER.items()},
    }
    return "".join(f"{name}={value}\n" for name, value in arguments.items())


def definition_files(environments: Iterable[Environment]) -> dict[str, str]:
    """Return file name -> text for environments that can be images. Does not depend on this machine."""
    files: dict[str, str] = {}
    for environment in environments:
        image = environment.image
        if image.on_host or image.ready is not None:
            continue
        suite = suite_for_python(image.suite, image.python)
        base = image.base or BASES.get(suite) or f"debian:{suite}-slim"
        files[f"{environment.name}.Dockerfile"] = image_definition(DOCKER, image, base, environment, by_hand=True)
        files[f"{environment.name}.def"] = image_definition(APPTAINER, image, base, environment, by_hand=True)
    return files
