"""Use a ready-made image with Docker's API: pull it, find it by its tag, or load it from an archive."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from envmatrix.build.cache import disk_errors, file_digest, is_disk_full
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Prepared
from envmatrix.engines.docker_client import DockerClient, DockerException, ImageNotFound, docker_errors, pull
from envmatrix.engines.docker_images import output_inside, pull_reference
from envmatrix.engines.ready import image_file, prepare_ready_image
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.matrix.values import is_image_file
from envmatrix.plan.environment import Image, Library
from envmatrix.system.progress import ProgressCallback

_LOADED_REPOSITORY = "envmatrix/loaded"


def prepare_ready_docker_image(
    client: DockerClient,
    engine: str,
    places: BuildPaths,
    image: Image,
    libraries: tuple[Library, ...],
    progress: ProgressCallback,
) -> Prepared:
    """Find a ready-made image, and return it by its id."""

    def inside(argv: Sequence[str], mounted: Mapping[str, str]) -> str:
        with docker_errors(f"inspecting {image.ready}"):
            return output_inside(client, places, image_id, argv, mounted, tmpfs=["/tmp"])  # noqa: S108

    image_id = find_image_id(client, engine, image, progress)
    return prepare_ready_image(places, engine, image, libraries, (image_id, image_id), inside, progress)


def find_image_id(client: DockerClient, engine: str, image: Image, progress: ProgressCallback) -> str:
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
    reference = pull_reference(str(image.ready))
    for candidate in (reference, *(() if _names_registry(reference) else (f"localhost/{reference}",))):
        with contextlib.suppress(ImageNotFound):
            return str(client.images.get(candidate).id)
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


def _names_registry(reference: str) -> bool:
    """Return whether a reference names its registry: a host before the first / (distribution/reference)."""
    host, slash, _ = reference.partition("/")
    return bool(slash) and (host == "localhost" or "." in host or ":" in host)


def _load_archive(client: DockerClient, engine: str, image: Image, progress: ProgressCallback) -> str:
    file = image_file(image)
    if file.suffix == ".sif":
        raise SkipEnvironmentError(
            f"image {image.name} is a SIF file, which Docker and Podman cannot start",
            remedy="use `--engine apptainer` for it, or name the Docker image that it was built from",
        )
    tag = file_digest(file)[:24]
    for candidate in (f"{_LOADED_REPOSITORY}:{tag}", f"localhost/{_LOADED_REPOSITORY}:{tag}"):
        with contextlib.suppress(ImageNotFound):
            return str(client.images.get(candidate).id)
    progress(f"loading {file}")
    with disk_errors(file), file.open("rb") as archive:
        images = client.images.load(archive)
    if not images:
        raise SkipEnvironmentError(f"image: {file} is not a Docker archive", remedy=f"create it with `{engine} save`")
    images[0].tag(_LOADED_REPOSITORY, tag)
    return str(images[0].id)
