"""Build images with Docker's API: the base, the image, and named environments, which add only metadata."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import disk_errors, json_digest
from envmatrix.build.debian.minimal_base import BASES
from envmatrix.build.images.context import (
    BaseImage,
    BuildInputs,
    bench_digest,
    bootstrapped_base,
    container_suite,
    gather_build_inputs,
    write_context,
)
from envmatrix.build.images.definitions import DOCKER, STAGE_LABEL, USER, image_definition, named_definition
from envmatrix.build.images.labels import TITLE, image_title, named_labels
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker_api import APIError, DockerClient, ImageNotFound, NotFound, docker_errors, pull, remove
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.system.progress import ProgressCallback

#: path-component of https://github.com/distribution/reference.
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*\Z")
#: Label that identifies the containers of a run.
RUN_LABEL = "org.envmatrix.run"
#: The cache of a container's run: users of one daemon can have runs of the same name.
CACHE_LABEL = "org.envmatrix.cache"
#: The process that a container of a build belongs to.
_OWNER_LABEL = "org.envmatrix.owner"


def repository_name(name: str) -> str:
    """Return a valid Docker repository name; a name that must change gets a hash to stay unique."""
    if _REPOSITORY.match(name):
        return name
    normalized = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
    return f"{normalized or 'x'}-{json_digest(name)[:6]}"


def without_redundant_tag(reference: str) -> str:
    """Return a reference with a digest without its tag: not every engine accepts both."""
    return re.sub(r":[^:/@]+@", "@", reference)


@dataclass(frozen=True)
class DockerImages:
    """Builds images with one engine."""

    client: DockerClient
    places: BuildPaths

    @property
    def _labels(self) -> dict[str, str]:
        """The labels of a container of a build by this process."""
        return {RUN_LABEL: "build", CACHE_LABEL: str(self.places.cache.root), _OWNER_LABEL: str(os.getpid())}

    def remove_leftovers(self) -> None:
        """Remove the containers of builds with this cache whose process was killed."""
        labels = [f"{name}={value}" for name, value in self._labels.items() if name != _OWNER_LABEL]
        for container in self.client.containers.list(all=True, filters={"label": labels}, ignore_removed=True):
            if not Path("/proc", container.labels[_OWNER_LABEL]).exists():
                remove(self.client, str(container.id))

    def output(
        self, image: str, argv: Sequence[str], mounted: Mapping[str, str] | None = None, tmpfs: Sequence[str] = ()
    ) -> str:
        """Return a command's output in an image isolated as for a trial; ``mounted`` is path inside -> path here."""
        output = self.client.containers.run(
            image,
            list(argv[1:]),
            entrypoint=list(argv[:1]),
            network_mode="none",
            user=f"{USER}:{USER}",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges", "label=disable"],
            tmpfs=dict.fromkeys(tmpfs, ""),
            remove=True,
            labels=self._labels,
            volumes=[f"{path}:{inside}:ro" for inside, path in (mounted or {}).items()],
        )
        return bytes(output).decode(errors="replace")

    def base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        """Return the base: matrix.yaml's, the pinned official image, or one made with mmdebstrap."""
        suite = container_suite(image)
        reference = image.base or BASES.get(suite)
        if reference:
            try:
                return self._from_registry(suite, reference)
            except EngineError as error:
                if image.base:
                    raise
                progress(
                    f"base: no reachable registry has {reference.split('@')[0]} ({_first_line(error)}); "
                    "building one instead"
                )
        return self._bootstrap_base(image, progress)

    def _from_registry(self, suite: str, reference: str) -> BaseImage:
        with docker_errors(f"pulling the base image {reference}"):
            reference = without_redundant_tag(reference)
            try:
                image = self.client.images.get(reference)
            except ImageNotFound:
                pull(self.client, reference)
                image = self.client.images.get(reference)
            return BaseImage(suite, reference, str(image.id), self._dpkg_status(reference), reference)

    def _dpkg_status(self, reference: str) -> str:
        container = self.client.containers.create(reference, command=["true"], labels=self._labels)
        try:
            stream, _ = container.get_archive("/var/lib/dpkg/status")
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                file = archive.extractfile("status")
                return file.read().decode() if file else ""
        except NotFound as error:
            raise EngineError(f"{reference} is not a Debian image (it has no dpkg status)") from error
        finally:
            container.remove(force=True)

    def _bootstrap_base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        base, tar = bootstrapped_base(image, self.places, progress)
        repository, tag = base.reference.split(":")
        with docker_errors(f"importing the base image {base.reference}"):
            if not held_image_id(self.client, base.reference):
                import_response = self.client.api.import_image(src=str(tar), repository=repository, tag=tag)
                image_id = json.loads(str(import_response).strip().splitlines()[-1])["status"]
                self.client.api.tag(image_id, repository, tag)  # Podman 4 drops the tag of an import
        return base

    def build(
        self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback, *, fresh: bool
    ) -> tuple[str, BuildInputs]:
        """Build or reuse an image; return its tag. ``fresh`` rebuilds it if its bench/ is outdated."""
        inputs = gather_build_inputs(self.places, image, libraries, self.base(image, progress), progress)
        tag = f"envmatrix/image-{repository_name(image.name)}:{inputs.key[:12]}"
        bench = bench_digest(self.places)
        with docker_errors(f"looking for {tag}"):
            is_outdated = self.bench_digest_inside(tag) != bench
            if held_image_id(self.client, tag) and not (is_outdated and fresh):
                if is_outdated:
                    progress(
                        f"{tag} contains an older bench/: trials mount the current one; `envmatrix "
                        "build` rebuilds the image with it"
                    )
                return tag, inputs
        progress(f"building {tag} on {inputs.base.reference} ({inputs.base.choice})")
        with self.places.cache.exclusive_lock(tag), self.places.cache.scratch("context") as scratch:
            write_context(inputs, self.places.bench, scratch)
            arguments = {**inputs.build_arguments(bench), "BASE": self._image_id(inputs.base.reference)}
            self.build_from(scratch, image_definition(DOCKER, image, inputs.base.reference, stage=tag), tag, arguments)
            self._remove_untagged(TITLE, image_title(image.name))
        return tag, inputs

    def _image_id(self, reference: str) -> str:
        """Return an image's id without prefix: Podman looks up short names in a registry, but not ids."""
        image_id = held_image_id(self.client, without_redundant_tag(reference))
        return (image_id or reference).removeprefix("sha256:")

    def build_from(self, context: Path, text: str, tag: str, arguments: Mapping[str, str]) -> None:
        """Build a Dockerfile's text without network, and remove what a failed build leaves."""
        with disk_errors(context):
            (context / "Dockerfile").write_text(text, encoding="utf-8")
        with docker_errors(f"building {tag}"):
            try:
                self.client.images.build(
                    path=str(context), tag=tag, rm=True, forcerm=True, network_mode="none", buildargs=dict(arguments)
                )
            finally:
                self._remove_untagged(STAGE_LABEL, tag)

    def _remove_untagged(self, label: str, value: str) -> None:
        """Remove untagged images with a label: intermediate stages, and replaced images.

        Images in use by a container stay until the next build.
        """
        with contextlib.suppress(APIError):
            self.client.images.prune(filters={"dangling": True, "label": f"{label}={value}"})

    def named(
        self, environment: Environment, parent: str, publisher: Mapping[str, str], progress: ProgressCallback
    ) -> str:
        """Build the image of a named environment (its image with variables and labels); return the tag."""
        tag = f"envmatrix/{repository_name(environment.name)}:latest"
        with docker_errors(f"looking for {parent}"):
            dockerfile_text = named_definition(DOCKER, environment, self._image_id(parent), publisher)
        progress(f"building {tag} on {parent}: only metadata changes")
        with docker_errors(f"building {tag}"), self.places.cache.exclusive_lock(tag):
            dockerfile = io.BytesIO(dockerfile_text.encode())
            self.client.images.build(fileobj=dockerfile, tag=tag, rm=True, forcerm=True, network_mode="none")
            self._remove_untagged(TITLE, named_labels(environment)[TITLE])
        return tag

    def bench_digest_inside(self, tag: str) -> str | None:
        """Return the digest of the bench/ in an image; None if there is no such image."""
        try:
            labels: Mapping[str, str] = self.client.images.get(tag).labels or {}
        except ImageNotFound:
            return None
        return labels.get("org.envmatrix.bench")

    def save(self, tag: str, file: Path) -> None:
        """Write an image as a Docker archive."""
        with docker_errors(f"saving {tag}"), disk_errors(file), file.open("wb") as target:
            for chunk in self.client.images.get(tag).save(chunk_size=2**20, named=True):
                target.write(chunk)


def held_image_id(client: DockerClient, reference: str) -> str | None:
    """Return the id of an image that the engine has; Podman has what it built or loaded below ``localhost/``."""
    host, slash, _ = reference.partition("/")
    names_registry = bool(slash) and (host == "localhost" or "." in host or ":" in host)
    for name in (reference,) if names_registry else (reference, f"localhost/{reference}"):
        with contextlib.suppress(ImageNotFound):
            return str(client.images.get(name).id)
    return None


def _first_line(error: EngineError) -> str:
    return error.message.splitlines()[0][:160]


def image_id_and_layers(attributes: Mapping[str, object]) -> dict[str, str]:
    """Return the facts about a built image for run.json."""
    rootfs = attributes.get("RootFS")
    layers = (rootfs.get("Layers") if isinstance(rootfs, dict) else None) or []
    return {"image_id": str(attributes.get("Id", "")), "layers": " ".join(layers)}
