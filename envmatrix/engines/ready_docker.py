"""A ready image with a Docker-API engine: pulled, found by its tag, or loaded from an archive."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from envmatrix.build.cache import disk_errors, file_digest
from envmatrix.build.paths import Places
from envmatrix.engines.base import Prepared
from envmatrix.engines.docker_client import DockerClient, ImageNotFound, docker_errors
from envmatrix.engines.docker_images import output_inside, pullable
from envmatrix.engines.ready import image_file, prepared_ready
from envmatrix.errors import SkipEnvironmentError
from envmatrix.matrix.values import is_image_file
from envmatrix.plan.environment import Image, Library
from envmatrix.system.progress import ProgressCallback

_LOADED = "envmatrix/loaded"


def ready_in_docker(
    client: DockerClient, places: Places, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback
) -> Prepared:
    """Find a ready image, and return it by its id."""

    def inside(argv: Sequence[str], mounted: Mapping[str, str]) -> str:
        with docker_errors(f"looking into {image.ready}"):
            return output_inside(client, image_id, argv, mounted, tmpfs=["/tmp"])  # noqa: S108

    image_id = image_id_of(client, image, progress)
    return prepared_ready(places, "docker", image, libraries, (image_id, image_id), inside, progress)


def image_id_of(client: DockerClient, image: Image, progress: ProgressCallback) -> str:
    """Return the id of a ready image, which is pulled or loaded where it is not there yet."""
    name = str(image.ready)
    with docker_errors(f"looking for image {name}"):
        if is_image_file(name):
            return _loaded(client, image, progress)
        reference = pullable(name)
        for known in (reference, *(() if _has_host(reference) else (f"localhost/{reference}",))):
            with contextlib.suppress(ImageNotFound):
                return str(client.images.get(known).id)
        progress(f"pulling {reference}")
        client.images.pull(reference)
        return str(client.images.get(reference).id)


def _has_host(reference: str) -> bool:
    """Whether a reference names its registry: what stands before the first / is a host (distribution/reference)."""
    first, slash, _ = reference.partition("/")
    return bool(slash) and (first == "localhost" or "." in first or ":" in first)


def _loaded(client: DockerClient, image: Image, progress: ProgressCallback) -> str:
    file = image_file(image)
    if file.suffix == ".sif":
        raise SkipEnvironmentError(
            f"image {image.name} is a SIF file, which Docker and Podman cannot start",
            remedy="use `--engine apptainer` for it, or name the image that it was made of",
        )
    tag = file_digest(file)[:24]
    for known in (f"{_LOADED}:{tag}", f"localhost/{_LOADED}:{tag}"):
        with contextlib.suppress(ImageNotFound):
            return str(client.images.get(known).id)
    progress(f"loading {file}")
    with disk_errors(file), file.open("rb") as archive:
        made = client.images.load(archive)
    if not made:
        raise SkipEnvironmentError(f"image: {file} is no Docker archive", remedy="make it with `docker save`")
    made[0].tag(_LOADED, tag)
    return str(made[0].id)
