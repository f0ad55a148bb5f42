"""Use a ready-made image with Apptainer: a SIF, or one built from an archive, a Docker image or a registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors, file_digest
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.podman import image_source
from envmatrix.engines.ready import image_file
from envmatrix.engines.ready_docker import find_image_id
from envmatrix.matrix.values import is_image_file
from envmatrix.plan.environment import Image
from envmatrix.system.progress import ProgressCallback

#: Name of an archive in a scratch folder; the SIF built from it records this name.
ARCHIVE = "image.tar"
#: Builds a SIF (first) from a source in Apptainer's notation, in a scratch folder.
Build = Callable[[Path, str, Path], None]


def ready_sif(
    places: BuildPaths, image: Image, place: Callable[[str], Path], build: Build, progress: ProgressCallback
) -> tuple[str, str]:
    """Return the SIF of a ready-made image, and its source's digest; ``place`` maps a digest to a SIF's path."""
    name, cache = str(image.ready), places.cache
    if is_image_file(name):
        file = image_file(image)
        digest = f"sha256:{file_digest(file)}"
        if file.suffix == ".sif":
            return str(file), digest
        return _ensure_sif(cache, place(digest), file, build, progress), digest
    if docker := image_source(places):
        return _sif_from_docker(docker, image, place, build, progress)
    return (
        sif := _ensure_sif(cache, place(name), f"docker://{name}", build, progress)
    ), f"sha256:{file_digest(Path(sif))}"


def _ensure_sif(cache: Cache, sif: Path, source: str | Path, build: Build, progress: ProgressCallback) -> str:
    """Build or reuse the SIF of an archive, or of a source in Apptainer's notation."""

    def fill(folder: Path) -> None:
        progress(f"building a SIF from {source}")
        with cache.scratch("sif") as scratch:
            if isinstance(source, Path):
                (scratch / ARCHIVE).symlink_to(source)
            build(folder / sif.name, source if isinstance(source, str) else f"docker-archive:{ARCHIVE}", scratch)

    cache.folder(sif.parent, fill)
    return str(sif)


def _sif_from_docker(
    docker: DockerEngine, image: Image, place: Callable[[str], Path], build: Build, progress: ProgressCallback
) -> tuple[str, str]:
    cache = docker.places.cache
    with docker.client(f"saving {image.ready}") as client:
        digest = find_image_id(client, image, progress)
        sif = place(digest)
        if not sif.exists():
            with cache.scratch("archive") as scratch:
                archive = scratch / ARCHIVE
                with disk_errors(archive), archive.open("wb") as file:
                    for chunk in client.images.get(digest).save(chunk_size=2**20):
                        file.write(chunk)
                _ensure_sif(cache, sif, archive, build, progress)
        return str(sif), digest
