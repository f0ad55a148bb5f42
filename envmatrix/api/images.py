"""What environments are made of: locks, images, and all that one is built from by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.api.places import PathLike, load_matrix
from envmatrix.build.archive import docker_archive, rooted, rooted_name
from envmatrix.build.context import Ingredients, bench_digest, gather, system_packages, write_context
from envmatrix.build.debian_suites import Suite
from envmatrix.build.generated_files import definition_files
from envmatrix.build.labels import OF_PUBLISHER, publisher_labels
from envmatrix.build.locks import Locks
from envmatrix.build.paths import Places
from envmatrix.engines.base import BuildsImages
from envmatrix.engines.base_images import bootstrapped_base
from envmatrix.engines.catalog import AUTO, choose_engine, find_engine
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import cells
from envmatrix.plan.environment import Environment, Image, all_libraries, images_of, resolve
from envmatrix.results import write_whole
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.project import beside
from envmatrix.trials.experiment import (
    design_environments,
    find_design,
    snapshot_bench,
)
from envmatrix.trials.images import locks_beside, open_engines, places_of, prepare_images

#: Before a word that names a design and an environment.
_DESIGN = "design:"


@dataclass(frozen=True)
class Built:
    """What was built: image -> where it is, or the command that starts it. ``missing``: environment -> why not."""

    engine: str
    ready: Mapping[str, str]
    missing: Mapping[str, str]
    starts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """The folder of a build by hand, an archive of its base for where no registry can be reached, and that base.

    ``arguments`` is a file of build arguments, NAME=VALUE: that base, and what the labels say of this context.
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
) -> Built:
    """Build the environments of a design, or those named, as far as they are not built yet.

    ``names`` is one design ('design:NAME' where an environment has that name too) or environments; none: the design
    'default'. Environments on an engine that builds images become stand-alone ones in containers/ beside the matrix
    (in this folder where the matrix is the package's).
    Raises InputError, EngineError.
    """
    whole, facts = load_matrix(matrix, progress), this_host().facts()
    design = meant_design(whole, names or ["default"], progress)
    if design:
        chosen = design_environments(whole, design, facts)
    else:
        chosen = {name: resolve(whole, name, facts) for name in names}
    place = _places(whole)
    name = choose_engine(progress) if engine == AUTO else engine
    opened = open_engines([name], place)
    if not design and isinstance(builder := opened[name], BuildsImages):
        return _build_named(whole, list(chosen.values()), name, builder, progress)
    ready, missing = prepare_images(chosen, opened, all_libraries(whole), progress)
    return Built(
        name,
        {image: prepared.reference for (image, _), prepared in ready.items()},
        {environment: reason for (environment, _), reason in missing.items()},
    )


def _build_named(
    matrix: Matrix, environments: Sequence[Environment], name: str, engine: BuildsImages, progress: ProgressCallback
) -> Built:
    """Build the stand-alone image of each environment; files and bills of material lie in containers/."""
    folder = beside(Path(matrix.path)) / "containers"
    libraries = all_libraries(matrix)
    return Built(
        name, {}, {}, tuple(engine.build_named(each, libraries, folder, progress).start for each in environments)
    )


def meant_design(matrix: Matrix, names: Sequence[str], progress: ProgressCallback = silent) -> Design | None:
    """Return the design that ``names`` means, or None: they are environments.

    What names both is the environment, and ``progress`` is told how the design is written.
    """
    designs = [name for name in names if _names_design(matrix, name, progress)]
    if not designs:
        return None
    if len(names) > 1:
        raise InputError(
            f"{designs[0]!r} is a design, and {len(names)} names are given",
            remedy="name one design at a time, or environments alone",
        )
    return find_design(matrix, designs[0].removeprefix(_DESIGN))


def _names_design(matrix: Matrix, name: str, progress: ProgressCallback) -> bool:
    if name in matrix.environments:
        if name in matrix.designs:
            progress(f"{name} is an environment and a design; the design is written {_DESIGN}{name}")
        return False
    if name in matrix.designs or name.startswith(_DESIGN):
        return True
    if not any(name in cells(design) for design in matrix.designs.values()):
        known = (*matrix.designs, *matrix.environments)
        raise InputError(f"no design or environment {name!r}", remedy=suggestion(name, known))
    return False


def _places(matrix: Matrix) -> Places:
    return places_of(Path(matrix.path), snapshot_bench()[1])


def lock(
    environments: Sequence[str] = (),
    *,
    engine: str | None = None,
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> list[Path]:
    """Resolve and pin what images and libraries are made of, with the host's own pip and apt.

    ``environments``: whose images (none: all); ``engine``: pin the system packages of this engine's images instead.
    Returns the files that were written, in containers/locks/ beside the matrix. Raises InputError, EngineError.
    """
    whole = load_matrix(matrix, progress)
    place = replace(_places(whole), locks=locks_beside(Path(whole.path)))
    locks = Locks(place.locks, place.cache)
    named = {image.name: image for image in (resolve(whole, name, {}).image for name in environments)}
    images = tuple((named or images_of(whole)).values())
    if engine is None:
        written = locks.make(images, all_libraries(whole), progress)
    else:
        builder = _image_engine(engine, place)
        written = [_pin_system(builder, image, place, locks, progress) for image in images if not image.on_host]
    return list(dict.fromkeys(written))


def _image_engine(name: str, place: Places) -> BuildsImages:
    engine = find_engine(name, place)
    if isinstance(engine, BuildsImages):
        return engine
    raise InputError(
        f"engine {name!r} has no images of its own", remedy="`envmatrix list engines` says which build images"
    )


def _pin_system(engine: BuildsImages, image: Image, place: Places, locks: Locks, progress: ProgressCallback) -> Path:
    """Pin what an image adds to the base that this engine starts it from."""
    base = engine.base(image, progress)
    suite = Suite(base.suite, place.cache)
    packages = system_packages(image, suite)
    pins = suite.closure(packages, base.status)
    return locks.pin_system(suite.distribution, packages, base.choice, pins, progress)


def write_definitions(
    names: Sequence[str] = (),
    *,
    output: PathLike | None = None,
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> list[Path]:
    """Write the Dockerfile and the Apptainer definition of each environment and return the files.

    ``names`` is one design or environments; none: every environment of the matrix. ``output`` is the folder (None:
    containers/ beside the matrix, or here for the package's). Raises InputError.
    """
    whole = load_matrix(matrix, progress)
    design = meant_design(whole, names, progress)
    wanted = list(design_environments(whole, design, {})) if design else list(names or whole.environments)
    folder = Path(output) if output is not None else beside(Path(whole.path)) / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    files = definition_files(whole, wanted)
    for name, text in files.items():
        write_whole(folder / name, text)
    return [folder / name for name in files]


def write_build_context(
    environment: str, folder: PathLike, *, matrix: PathLike | None = None, progress: ProgressCallback = silent
) -> Context:
    """Fetch and check all that an environment's image is made of into a new or empty ``folder``.

    It is for a build by hand with the network off. Raises InputError, EngineError.
    """
    whole, target = load_matrix(matrix, progress), Path(folder)
    image = resolve(whole, environment, {}).image
    place = _places(whole)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is not an empty folder", remedy="name a new one, or remove what is in it")
    base, tar = bootstrapped_base(image, place, progress)
    made = gather(place, image, all_libraries(whole), base, progress)
    write_context(made, place.bench, target)
    archive = target.with_name(f"{target.name}-base.tar")
    with place.cache.scratch("context") as scratch:
        rooted(tar, scratch / "base.tar")  # so that an ordinary user without a range of users can build from it
        docker_archive(scratch / "base.tar", archive, rooted_name(base.reference))
    arguments = target.with_name(f"{target.name}.args")
    write_whole(arguments, _arguments_text(made, place, Path(whole.path).resolve().parent))
    return Context(target, archive, base.choice, arguments)


def _arguments_text(made: Ingredients, place: Places, folder: Path) -> str:
    """Return the build arguments of a context, as `apptainer build --build-arg-file` reads them."""
    publisher = publisher_labels(folder)
    said = {
        **made.build_arguments(bench_digest(place)),
        **{argument: publisher[label] for label, argument in OF_PUBLISHER.items()},
    }
    return "".join(f"{name}={value}\n" for name, value in said.items())
