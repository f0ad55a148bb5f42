"""Prepare ready-made images: find, pull or load them, inspect what they contain, and mount missing libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envmatrix.build.cache import disk_errors, file_digest, is_disk_full
from envmatrix.build.images.definitions import LIBRARIES
from envmatrix.build.libraries import LibraryBuilder, LibraryFolders
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python.interpreters import find_python_cached
from envmatrix.engines.base import Prepared
from envmatrix.engines.docker_api import DockerClient, DockerException, docker_errors, pull
from envmatrix.engines.docker_images import DockerImages, held_image_id, without_redundant_tag
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.matrix.field_types import is_image_file
from envmatrix.plan.environment import Image, Library
from envmatrix.system.process import parse_last_json
from envmatrix.system.progress import ProgressCallback

#: Runs a command in an image with folders mounted (path inside -> folder here); returns its output.
RunInside = Callable[[Sequence[str], Mapping[str, str]], str]
_SHELL = (
    'p=$(command -v python3 || command -v python) || { echo "no python3 is on its PATH" >&2; exit 1; }; exec "$p" "$@"'
)
#: Loads each library once, to check that its glibc and dependencies are available (ld.so(8)).
_PROBE = """
import json, os, subprocess, sys
def ask(argv, **more):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          env=dict(os.environ, **more))
    return done.returncode, done.stdout, done.stderr.strip().splitlines()
def listed(text):  # a sitecustomize may print before it, and at its end
    return next(json.loads(line) for line in reversed(text.splitlines()) if line.startswith('["'))
def loads(paths):
    code, _, said = ask([sys.executable, "-I", "-S", "-c", ""], LD_PRELOAD=":".join(paths))
    return said[0] if said else "" if code == 0 else "Python ends with status %d" % code
try:
    names = sorted({line.split()[0] for line in ask(["/sbin/ldconfig", "-p"])[1].splitlines()[1:] if " => " in line})
except OSError:
    names = None
torch = ask([sys.executable, "-I", "-c", "import json, torch; print(json.dumps([torch.__version__, torch.__file__]))"])
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION")
except (ValueError, OSError):
    libc = "no glibc"
print(json.dumps({
    "python": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3], "libc": libc, "loader": names,
    "variables": dict(os.environ), "torch": listed(torch[1]) if torch[0] == 0 else None,
    "torch_error": (torch[2] or [""])[-1],
    "wrong": {key: loads(paths) for key, paths in json.loads(sys.argv[1]).items()},
}))
"""
#: Variables set by an engine or a shell, not by the image.
_ENGINE_VARIABLES = frozenset(
    {"HOME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "USER", "container", "PS1", "PATH"}
)
_PREFIXES = ("APPTAINER_", "SINGULARITY_", "PROMPT_COMMAND", "LC_")
_APPTAINER_LIBRARIES = "/.singularity.d/libs"


def prepare_ready_image(
    places: BuildPaths,
    engine: str,
    image: Image,
    libraries: tuple[Library, ...],
    found: tuple[str, str],
    inside: RunInside,
    progress: ProgressCallback,
) -> Prepared:
    """Return a ready-made image, ``found`` as (reference, digest), with the libraries that load in it mounted.

    Raises SkipEnvironmentError if it cannot run Python.
    """
    reference, digest = found
    python = find_python_cached(places.cache, None)
    folders = LibraryBuilder(Locks(places.locks, places.cache, progress), python).build(libraries, image)
    mounted = {f"{LIBRARIES}/{key}": folder for key, folder in folders.folders.items()}
    files = {library.key: [f"{LIBRARIES}/{library.key}/{file}" for file in library.files] for library in libraries}
    library_files = json.dumps({key: files[key] for key in folders.folders})
    try:
        probe = parse_last_json(inside(["/bin/sh", "-c", _SHELL, "sh", "-I", "-c", _PROBE, library_files], mounted))
    except (ValueError, EngineError) as error:
        raise SkipEnvironmentError(
            f"image {image.ready} does not start Python, which a trial needs: {str(error)[-300:]}",
            remedy="use an image in which python3 starts",
        ) from error
    load_errors = {key: str(why) for key, why in probe["wrong"].items() if why}
    inside_folders = {key: f"{LIBRARIES}/{key}" for key in folders.folders if key not in load_errors}
    return Prepared(
        image.name,
        engine,
        reference,
        str(probe["python"]),
        inside_folders,
        _image_facts(image, digest, probe, folders),
        {**folders.missing, **_missing_libraries(load_errors, str(probe["libc"]))},
        None if probe["loader"] is None else frozenset(probe["loader"]),
        _no_torch_reason(image, probe),
        variables=_image_variables(probe["variables"]),
        mounted={inside_folders[key]: folders.folders[key] for key in inside_folders},
    )


def _image_facts(image: Image, digest: str, probe: Mapping[str, object], folders: LibraryFolders) -> dict[str, str]:
    torch = probe["torch"]
    torch_facts = {"torch": str(torch[0]), "torch_file": str(torch[1])} if isinstance(torch, list) else {}
    base_facts = {"base": str(image.ready), "base_digest": digest, "base_choice": "ready image"}
    return {**base_facts, "python": str(probe["version"]), "libc": str(probe["libc"]), **torch_facts, **folders.facts}


def _missing_libraries(load_errors: Mapping[str, str], libc: str) -> dict[str, str]:
    remedy = "build the image on a newer system, or install the library in it and write `preload:` without its package"
    return {key: f"it does not load in this image ({libc}): {why}\n  -> {remedy}" for key, why in load_errors.items()}


def _no_torch_reason(image: Image, probe: Mapping[str, object]) -> str:
    if probe["torch"]:
        return ""
    return f"image {image.ready} cannot import torch: {probe['torch_error']}\n  -> use an image with PyTorch"


def _image_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables set by the image itself."""
    image_variables = {
        name: value
        for name, value in variables.items()
        if name not in _ENGINE_VARIABLES and not name.startswith(_PREFIXES)
    }
    folders = [
        part for part in image_variables.pop("LD_LIBRARY_PATH", "").split(":") if part and part != _APPTAINER_LIBRARIES
    ]
    return {**image_variables, **({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})}


def image_file(image: Image) -> Path:
    """Return the file of a ready-made image. Raises SkipEnvironmentError if it does not exist."""
    file = Path(str(image.ready)).expanduser().resolve()
    if not file.is_file():
        raise SkipEnvironmentError(
            f"image: file {file} does not exist",
            remedy="name an existing file, relative to the folder that you start in",
        )
    return file


_LOADED_REPOSITORY = "envmatrix/loaded"


def prepare_ready_docker_image(
    images: DockerImages, engine: str, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback
) -> Prepared:
    """Find a ready-made image, and return it by its id."""

    def inside(argv: Sequence[str], mounted: Mapping[str, str]) -> str:
        with docker_errors(f"inspecting {image.ready}"):
            return images.output(image_id, argv, mounted, tmpfs=["/tmp"])  # noqa: S108

    image_id = ready_image_id(images.client, engine, image, progress)
    return prepare_ready_image(images.places, engine, image, libraries, (image_id, image_id), inside, progress)


def ready_image_id(client: DockerClient, engine: str, image: Image, progress: ProgressCallback) -> str:
    """Return the id of a ready-made image; pull or load it if needed. ``engine`` is the name of a program too."""
    name = str(image.ready)
    with docker_errors(f"looking for image {name}"):
        image_id = (_load_archive if is_image_file(name) else _find_or_pull)(client, engine, image, progress)
        there, here = client.images.get(image_id).attrs.get("Architecture"), client.version()["Arch"]
    if there and there != here:
        raise SkipEnvironmentError(
            f"image {name} is for processors of another architecture: {there}; these are {here}",
            remedy=f"`{engine} pull --platform linux/{here} REF`, or build it with `--platform linux/{here}`",
        )
    return image_id


def _find_or_pull(client: DockerClient, engine: str, image: Image, progress: ProgressCallback) -> str:
    reference = without_redundant_tag(str(image.ready))
    if image_id := held_image_id(client, reference):
        return image_id
    progress(f"pulling {reference}")
    try:
        pull(client, reference)
    except DockerException as error:
        words = " ".join(str(getattr(error, "explanation", None) or error).split())
        if is_disk_full(words):
            raise
        raise EngineError(
            f"image {image.ready} is not here, and cannot be pulled: {words[-300:]}",
            remedy=f"`{engine} images` lists those that are here; build it, or correct the name",
        ) from error
    return str(client.images.get(reference).id)


def _load_archive(client: DockerClient, engine: str, image: Image, progress: ProgressCallback) -> str:
    file = image_file(image)
    if file.suffix == ".sif":
        raise SkipEnvironmentError(
            f"image {image.name} is a SIF file, which Docker and Podman cannot start",
            remedy="use `--engine apptainer` for it, or name the Docker image that it was built from",
        )
    tag = file_digest(file)[:24]
    if image_id := held_image_id(client, f"{_LOADED_REPOSITORY}:{tag}"):
        return image_id
    progress(f"loading {file}")
    with disk_errors(file), file.open("rb") as archive:
        images = client.images.load(archive)
    if not images:
        raise SkipEnvironmentError(f"image: {file} is not a Docker archive", remedy=f"create it with `{engine} save`")
    images[0].tag(_LOADED_REPOSITORY, tag)
    return str(images[0].id)
