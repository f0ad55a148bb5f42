"""Write tar archives: Docker archives of a root file system, for Apptainer without Docker, and archives of folders."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from envmatrix.build.cache import disk_errors, file_digest
from envmatrix.system.architectures import package_name, this_architecture


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


def write_docker_archive(tar: Path, archive: Path, name: str) -> None:
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
