"""Collect the build context of an image: all its files, fetched and verified on the host, as files or as archives."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import disk_errors, file_digest, json_digest
from envmatrix.build.debian.minimal_base import PYTHONS, Suite, dpkg_status, suite_for_python
from envmatrix.build.images.definitions import LIBRARIES, VENV, recipe_digest
from envmatrix.build.libraries import LibraryBuilder, LibraryFolders, fetch_packages
from envmatrix.build.lockfile import PinnedPackage, Section
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python.interpreters import python_for_wheels
from envmatrix.build.python.source_builds import check_glibc, fetch_wheels
from envmatrix.build.python.wheelhouse import EnvironmentWheels, link_or_copy
from envmatrix.errors import SkipEnvironmentError
from envmatrix.plan.environment import Image, Library
from envmatrix.system import bench_options
from envmatrix.system.architectures import package_name, this_architecture
from envmatrix.system.progress import ProgressCallback
from envmatrix.version import __version__


def rooted(tar: Path, target: Path) -> None:
    """Copy a tar with every file owned by root, because a single-user namespace can unpack no other owner.

    SIF files store no owners, so nothing is lost.
    """
    with disk_errors(target), tarfile.open(tar) as source, tarfile.open(target, "w") as target_tar:
        for member in source:
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            target_tar.addfile(member, source.extractfile(member) if member.isreg() else None)


def rooted_name(reference: str) -> str:
    """Return the name of a ``rooted`` base; with the base's own name, `docker load` would take over that name."""
    return f"{reference}-rooted"


def write_one_layer_archive(tar: Path, archive: Path, name: str) -> None:
    """Write ``tar`` as a Docker archive with one layer, named ``name``."""
    digest = file_digest(tar)
    config = json.dumps(
        {
            "architecture": package_name(this_architecture()),
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with disk_errors(archive), tarfile.open(archive, "w") as target:
        layer = tarfile.TarInfo("layer.tar")
        layer.size = tar.stat().st_size
        with tar.open("rb") as source:
            target.addfile(layer, source)
        for path, content in (("config.json", config), ("manifest.json", manifest)):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))


def write_folders_tar(folders: Mapping[str, str], archive: Path) -> None:
    """Write folders of plain files and links to a tar; the same content always gives the same bytes."""

    def reset_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = "root"
        member.mode = 0o755
        return member

    with disk_errors(archive), tarfile.open(archive, "w") as target:
        for name, folder in sorted(folders.items()):
            target.add(folder, name, recursive=False, filter=reset_owner)
            for path in sorted(Path(folder).rglob("*")):
                target.add(path, f"{name}/{path.relative_to(folder)}", recursive=False, filter=reset_owner)


_REQUIRED_PACKAGES = ("python3", "numactl")


@dataclass(frozen=True)
class BaseImage:
    """The base of an image. ``reference`` is used in FROM; ``status`` is the text of its dpkg status file."""

    suite: str
    reference: str
    digest: str
    status: str
    choice: str


@dataclass(frozen=True)
class BuildInputs:
    """All inputs of an image, on the host and verified by hash. ``key`` changes with any of them."""

    image: Image
    base: BaseImage
    debs: tuple[PinnedPackage, ...]
    deb_files: tuple[Path, ...]
    wheels: EnvironmentWheels
    folders: LibraryFolders
    section: Section

    @property
    def key(self) -> str:
        """Digest of all inputs except bench/, which is mounted during a benchmark."""
        pins = [pin.sha256 for pin in (*self.debs, *self.wheels.pins)]
        recipe = recipe_digest(bool(self.image.requirements))
        return json_digest(self.base.digest, pins, json_digest(dict(self.folders.facts)), recipe)[:24]

    @property
    def python_path(self) -> str:
        """Path of the Python inside the image."""
        return f"{VENV}/bin/python3" if self.image.requirements else "/usr/bin/python3"

    def library_folders_in_image(self) -> dict[str, str]:
        """Return library key -> folder inside the image."""
        return {key: f"{LIBRARIES}/{key}" for key in self.folders.folders}

    def build_arguments(self, bench: str) -> dict[str, str]:
        """Return the build arguments for the labels of the image."""
        base = {"BASE_NAME": self.base.reference, "BASE_DIGEST": self.base.digest}
        return {"VERSION": __version__, **base, "LOCK": self.section.digest, "BENCH": bench}


def container_suite(image: Image) -> str:
    """Return the Debian suite of an image. Raises SkipEnvironmentError if no container can provide the image."""
    if image.ready:
        raise SkipEnvironmentError(
            f"nothing to build: image {image.name} uses {image.ready} as it is", remedy="run it as it is"
        )
    if image.on_host:
        raise SkipEnvironmentError(
            f"image {image.name} is a Python of this machine, which containers cannot use",
            remedy="use `--engine local` for it",
        )
    return suite_for_python(image.suite, image.python)


def gather_build_inputs(
    places: BuildPaths, image: Image, libraries: Sequence[Library], base: BaseImage, progress: ProgressCallback
) -> BuildInputs:
    """Lock, fetch and verify all inputs of ``image`` on ``base``."""
    locks = Locks(places.locks, places.cache, progress)
    suite = Suite(base.suite, places.cache)
    python = python_for_wheels(places.cache, PYTHONS.get(base.suite, PYTHONS["bookworm"]))
    packages = system_packages(image, suite)
    system = locks.system_lock(
        suite.name_with_architecture, packages, base.choice, lambda: suite.closure(packages, base.status)
    )
    deb_files = fetch_packages(places.cache, suite.apt, system.packages, progress)
    wheels, section = EnvironmentWheels((), ()), system
    if image.requirements:
        section = locks.image_lock(image, python)
        check_glibc(image, base.suite)
        wheels = fetch_wheels(places.cache, image, section, python, progress)
    folders = LibraryBuilder(locks, python, suite.apt).build(libraries, image)
    return BuildInputs(image, base, system.packages, tuple(deb_files), wheels, folders, section)


def system_packages(image: Image, suite: Suite) -> tuple[str, ...]:
    """Return the Debian packages that an image adds to its base; of alternatives, the first that the suite has."""
    own = [suite.apt.find(alternatives).name if "|" in alternatives else alternatives for alternatives in image.apt]
    return (*_REQUIRED_PACKAGES, *(["python3-venv"] if image.requirements else []), *own)


def write_context(inputs: BuildInputs, bench: Path, folder: Path) -> None:
    """Write the build context to ``folder``, with hard links if the file system supports them."""
    with disk_errors(folder):
        for name in ("debs", "wheels", "bench"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for file in inputs.deb_files:
            link_or_copy(file, folder / "debs" / file.name)
        for file in inputs.wheels.files:
            link_or_copy(file, folder / "wheels" / file.name)
        requirements = "".join(pin.text() for pin in inputs.wheels.pins)
        (folder / "wheels" / "requirements.txt").write_text(requirements, encoding="utf-8")
        write_folders_tar(inputs.folders.folders, folder / "lib.tar")
        shutil.copytree(
            bench, folder / "bench", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )


def context_facts(inputs: BuildInputs) -> dict[str, str]:
    """Return the facts about an image for run.json: base, lock, and the version of each package."""
    return {
        "base": inputs.base.reference,
        "base_digest": inputs.base.digest,
        "base_choice": inputs.base.choice,
        "lock": inputs.section.lock.name,
        "lock_digest": inputs.section.digest,
        **{f"package {pin.name}": pin.version for pin in inputs.wheels.pins},
        **inputs.wheels.facts,
        **{f"system {pin.name}": pin.version for pin in inputs.debs},
        **dict(inputs.folders.facts),
    }


def bench_digest(places: BuildPaths) -> str:
    """Return the digest of the current bench/."""
    return bench_options.folder_digest(places.bench)


def bootstrapped_base(image: Image, places: BuildPaths, progress: ProgressCallback) -> tuple[BaseImage, Path]:
    """Return a base made by mmdebstrap (bit-identical on all machines with the same mirror), and its tar."""
    suite = Suite(container_suite(image), places.cache)
    tar = suite.bootstrap(progress)
    digest = f"sha256:{file_digest(tar)}"
    reference = f"envmatrix/base:{suite.name}-{digest[7:19]}"
    return BaseImage(suite.name, reference, digest, dpkg_status(tar), f"debian {suite.name} by mmdebstrap"), tar
