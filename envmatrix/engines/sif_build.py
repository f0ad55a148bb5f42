"""SIF files: built by Apptainer from a definition, an archive, a Docker image, a registry or another SIF."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors, file_digest, json_digest, tool_error
from envmatrix.build.images.file_listing import ENGINE_PATHS, listing_argv
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer_command import NO_CONFIG, find_program, identity, is_unprivileged_root
from envmatrix.engines.podman import docker_or_podman_engine
from envmatrix.engines.ready_made_images import image_file, ready_image_id
from envmatrix.errors import EngineError, EnvmatrixError
from envmatrix.matrix.field_types import is_image_file
from envmatrix.plan.environment import Image
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import ProgressCallback

#: Name of an archive in a scratch folder; the SIF built from it records this name.
ARCHIVE = "image.tar"
_BUILD_S = 3600.0
#: Each trial decompresses what it reads from its SIF. Importing torch from zstd takes a third of a second longer than
#: from lz4. lz4 is as fast as no compression, and a third larger than zstd. So images use lz4, and distributed SIFs use
#: zstd level 1; both pack several times faster than gzip, the default. All files have one owner, because a user
#: namespace knows only one user and must unpack them for a named SIF.
_SQUASH_OPTIONS = "-comp lz4 -all-root"
SQUASH_NAMED_OPTIONS = "-comp zstd -Xcompression-level 1 -all-root"
#: Part of a SIF's key: SIFs built with other options, or from another archive name, are rebuilt.
BUILD_VERSION = (_SQUASH_OPTIONS, ARCHIVE)
#: Part of a SIF's key, because the stored digest of its files depends on the listing program.
_LISTING_ARGV = listing_argv("", "/", ENGINE_PATHS)
#: Messages of unshare(1) without permission, and of Apptainer run by a root that lacks capabilities.
_NO_NAMESPACE = re.compile(r"unshare: .*failed|Requesting capability set 0x\w+ while permitted")


def sif_path(cache: Cache, digest: str) -> Path:
    """Return the path of the SIF whose source has this digest."""
    return cache.root / "sif" / json_digest(digest, *BUILD_VERSION, _LISTING_ARGV)[:24] / "image.sif"


def build_sif(
    sif: Path, source: str, scratch: Path, options: Sequence[str] = (), squash: str = _SQUASH_OPTIONS
) -> None:
    """Build a SIF from files in ``scratch``, by relative names, because a SIF records the name of its source."""
    steps = not source.startswith("docker-archive:")
    prefix = ["unshare", "--user", "--map-root-user"] if steps and is_unprivileged_root() else []
    program = find_program() or "apptainer"
    argv = [*prefix, program, "build", "--force", f"--mksquashfs-args={squash}", *options, str(sif), source]
    folders = {"APPTAINER_TMPDIR": str(scratch), "APPTAINER_CACHEDIR": str(scratch / "cache"), **NO_CONFIG}
    result = run(argv, limit_s=_BUILD_S, env={**os.environ, **folders}, cwd=scratch)
    if not result.exit.ok:
        raise _build_error(result, sif)


def _build_error(result: Finished, sif: Path) -> EnvmatrixError:
    output = result.stderr + result.stdout
    if _NO_NAMESPACE.search(output):  # first, because exceeding the limit of namespaces also reports "no space left"
        return EngineError(
            f"apptainer could not build {sif.name}: root here lacks CAP_SYS_RESOURCE and cannot create user namespaces",
            remedy="start the container with --cap-add SYS_RESOURCE, or allow user namespaces on its host: "
            "sysctl user.max_user_namespaces=15000",
        )
    error_lines = [line for line in output.splitlines() if line.startswith(("FATAL", "E:", "ERROR"))]
    message = f"apptainer could not build {sif.name}: {'; '.join(error_lines[-3:]) or result.last_words(3)}"
    remedy = "run `envmatrix doctor` to see what this machine lacks; if the base lacks a package, run `envmatrix lock`"
    return tool_error(output, sif.parent, message, remedy)


def output_in_sif(sif: Path, command: Sequence[str], binds: Sequence[str] = ()) -> str:
    """Return the output of a command in a SIF."""
    options = ["--containall", "--cleanenv", "--no-home", "--no-privs", *identity(), *binds]
    argv = [find_program() or "apptainer", "--silent", "exec", *options, str(sif), *command]
    result = run(argv, limit_s=600.0, env={**os.environ, **NO_CONFIG})
    if result.exit.ok:
        return result.stdout
    what = f"the SIF does not start: {result.last_words(3)}"
    raise EngineError(what, remedy="run `apptainer --debug exec` for details")


def ensure_sif(places: BuildPaths, image: Image, progress: ProgressCallback) -> tuple[Path, str]:
    """Return the SIF of a ready-made image, and its source's digest: a SIF, or one built from what it names."""
    name, cache = str(image.ready), places.cache
    if is_image_file(name):
        file = image_file(image)
        digest = f"sha256:{file_digest(file)}"
        if file.suffix == ".sif":
            return file, digest
        return _sif_from(cache, digest, f"{file}", lambda archive: archive.symlink_to(file), progress), digest
    if docker := docker_or_podman_engine(places):
        with docker.client(f"saving {name}") as client:
            digest = ready_image_id(client, docker.name, image, progress)

            def save(archive: Path) -> None:
                with disk_errors(archive), archive.open("wb") as file:
                    file.writelines(client.images.get(digest).save(chunk_size=2**20))

            return _sif_from(cache, digest, name, save, progress), digest
    sif = _sif_from(cache, name, f"docker://{name}", None, progress)
    return sif, f"sha256:{file_digest(sif)}"


def _sif_from(
    cache: Cache, digest: str, source: str, write_archive: Callable[[Path], None] | None, progress: ProgressCallback
) -> Path:
    """Build or reuse the SIF of a ready-made image; without an archive, ``source`` is in Apptainer's notation.

    It has another path than that of an image built here, which may also be given as a ready-made one.
    """
    sif = sif_path(cache, f"ready-made {digest}")

    def build(folder: Path) -> None:
        progress(f"building a SIF from {source}")
        with cache.scratch("sif") as scratch:
            if write_archive:
                write_archive(scratch / ARCHIVE)
            build_sif(folder / sif.name, f"docker-archive:{ARCHIVE}" if write_archive else source, scratch)

    cache.folder(sif.parent, build)
    return sif
