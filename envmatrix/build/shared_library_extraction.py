"""Extract shared libraries from wheels and Debian packages to one flat folder, which no file can escape."""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO

from envmatrix.errors import EngineError

_SHARED_OBJECT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.so(\.[0-9]+)*\Z")
#: Larger files are skipped; no library is this large.
_MAX_BYTES = 2 * 2**30


def _shared_object_name(member: str) -> str | None:
    name = PurePosixPath(member).name
    return name if _SHARED_OBJECT.match(name) else None


def _write_member(source: IO[bytes], target: Path) -> None:
    if target.exists():
        return
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
    target.chmod(0o755)


def extract_libraries_of_wheel(wheel: Path, folder: Path, wanted: Collection[str]) -> list[str]:
    """Extract the ``wanted`` shared libraries (empty: all) of a wheel, with their parts; return the names of all."""
    names: list[str] = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in sorted(archive.infolist(), key=lambda item: item.filename):
                name = _shared_object_name(member.filename)
                is_link = (member.external_attr >> 28) == 0o12
                if name is None or member.is_dir() or is_link or member.file_size > _MAX_BYTES:
                    continue
                names.append(name)
                if not wanted or any(name == file or _is_sublibrary(name, file) for file in wanted):
                    with archive.open(member) as source:
                        _write_member(source, folder / name)
    except (zipfile.BadZipFile, EOFError) as error:
        raise EngineError(
            f"{wheel.name} is not a valid wheel ({error})", remedy=f"remove {wheel} and try again"
        ) from error
    return sorted(set(names))


def _is_sublibrary(name: str, library: str) -> bool:
    """Return whether a library loads a file itself, as libcudnn.so.9 loads libcudnn_ops.so.9 of its own folder."""
    stem, _, version = library.partition(".so.")
    return bool(version) and name.startswith(f"{stem}_") and name.endswith(f".so.{version}")


def unpack_libraries(tar: Path, folder: Path) -> list[str]:
    """Extract the shared libraries of a package's tar to ``folder`` by file name; return the names.

    Links become links to another file name in the folder; broken ones are dropped.
    """
    links: dict[str, str] = {}
    names: list[str] = []
    try:
        with tarfile.open(tar) as archive:
            for member in archive:
                name = _shared_object_name(member.name)
                if name and member.isfile() and member.size <= _MAX_BYTES:
                    source = archive.extractfile(member)
                    if source:
                        _write_member(source, folder / name)
                        names.append(name)
                elif name and (member.issym() or member.islnk()):
                    links[name] = PurePosixPath(member.linkname).name
    except tarfile.TarError as error:
        raise EngineError(f"{tar.name} is not a valid tar archive ({error})") from error
    return sorted({*names, *_make_links(links, folder)})


def _make_links(links: dict[str, str], folder: Path) -> list[str]:
    created = []
    for name, target in sorted(links.items()):
        resolved, visited = target, {name}
        while resolved in links and resolved not in visited:
            visited.add(resolved)
            resolved = links[resolved]
        if name != resolved and not (folder / name).exists() and (folder / resolved).is_file():
            (folder / name).symlink_to(resolved)
            created.append(name)
    return created
