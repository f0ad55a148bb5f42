"""Write and unpack the archive of a pack: reproducible bytes, and every file checked against the manifest."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from envmatrix.build.cache import file_digest
from envmatrix.build.debian.suites import SOURCE_DATE_EPOCH
from envmatrix.errors import StoreError, Where
from envmatrix.runner.pack_manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Entry,
    Manifest,
    is_safe,
    read_manifest,
)
from envmatrix.system.atomic_files import named_file, store_error
from envmatrix.system.regular_files import open_regular

_MAX_MANIFEST_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20
#: The content of a file in a pack: a path on disk, or bytes.
Content = Path | bytes


def content_size(content: Content) -> int:
    """Return the size of a file's content, in bytes."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def make_entry(content: Content) -> Entry:
    """Return the size and digest of a file's content."""
    if isinstance(content, bytes):
        return Entry(hashlib.sha256(content).hexdigest(), len(content))
    try:
        return Entry(file_digest(content), content.stat().st_size)
    except OSError as error:
        raise store_error(error, content) from error


class _HashingWriter:
    """A writer that computes digest and size as it writes, because a pipe cannot be read again."""

    def __init__(self, on: IO[bytes]) -> None:
        self._target, self._digest, self._size = on, hashlib.sha256(), 0

    def write(self, piece: bytes) -> int:
        self._digest.update(piece)
        self._size += memoryview(piece).nbytes
        return self._target.write(piece)

    def flush(self) -> None:
        self._target.flush()

    @property
    def entry(self) -> Entry:
        return Entry(self._digest.hexdigest(), self._size)


def write_archive(path: Path, manifest: Manifest, contents: Mapping[str, Content], signature: bytes | None) -> Entry:
    """Write the archive completely or not at all, and return its digest and size.

    The manifest comes first, so that a reader knows which files must follow.
    """
    head: dict[str, Content] = {MANIFEST_FILE: manifest.text().encode()}
    if signature:
        head[SIGNATURE_FILE] = signature
    try:
        with (
            named_file(path) as raw,
            gzip.GzipFile("", "wb", 6, hashing_writer := _HashingWriter(raw), mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, content in {**head, **dict(sorted(contents.items()))}.items():
                _add(tar, name, content)
    except OSError as error:
        raise StoreError(
            f"cannot write the archive: {error.strerror or error}",
            where=Where(path),
            remedy="name a file in a folder that has free space and that you can write to: --output FILE",
        ) from error
    return hashing_writer.entry


def _add(tar: tarfile.TarFile, name: str, content: Content) -> None:
    information = tarfile.TarInfo(name)
    information.mode, information.size = 0o644, content_size(content)
    with io.BytesIO(content) if isinstance(content, bytes) else open_regular(content) as file:
        tar.addfile(information, file)


@contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with open_regular(archive) as opened, tarfile.open(fileobj=opened, mode="r|gz") as tar:
            yield tar
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise StoreError(
            f"the archive is incomplete or not from envmatrix ({error})",
            where=Where(archive),
            remedy="copy or download it again",
        ) from error
    except OSError as error:
        raise StoreError(f"{error.strerror or error}", where=Where(archive)) from error


def _tampered_error(archive: Path, message: str) -> StoreError:
    return StoreError(
        f"the archive was changed: {message}", where=Where(archive), remedy="get it again; nothing was extracted"
    )


def _open_member(tar: tarfile.TarFile, information: tarfile.TarInfo, archive: Path) -> IO[bytes]:
    stream = tar.extractfile(information) if information.isfile() else None
    if stream is None or not is_safe(information.name):
        raise _tampered_error(archive, f"{information.name!r} is not a plain file inside the archive")
    return stream


def unpack(archive: Path, into: Path) -> tuple[Manifest, str, bytes | None]:
    """Verify the archive and write its files into ``into``, an empty folder that only the caller uses.

    Return the manifest, its text and its signature. Raise a StoreError for a file that is missing, added or altered.
    Refuse links, devices and paths that lead outside the folder.
    """
    with _open_tar(archive) as tar:
        members = iter(tar)
        text = _read_manifest_text(tar, members, archive)
        manifest = read_manifest(text, archive)
        signature: bytes | None = None
        expected = dict(manifest.files)
        _check_room(manifest, into, archive)
        for information in members:
            stream = _open_member(tar, information, archive)
            if information.name == SIGNATURE_FILE and signature is None:
                signature = stream.read(_CHUNK_BYTES)
            elif information.name in expected:
                _copy(stream, into / information.name, information, expected.pop(information.name), archive)
            else:
                raise _tampered_error(archive, f"{information.name} is not in its manifest, or occurs twice")
    if expected:
        raise _tampered_error(archive, f"{next(iter(expected))} is missing")
    return manifest, text, signature


def _read_manifest_text(tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], archive: Path) -> str:
    first_member = next(members, None)
    if first_member is None or first_member.name != MANIFEST_FILE or first_member.size > _MAX_MANIFEST_BYTES:
        raise StoreError(f"not a pack of envmatrix: it does not begin with {MANIFEST_FILE}", where=Where(archive))
    return _open_member(tar, first_member, archive).read().decode(errors="replace")


def _copy(stream: IO[bytes], target: Path, information: tarfile.TarInfo, entry: Entry, archive: Path) -> None:
    """Copy one file that is not longer than its manifest entry says, and compare the digest."""
    if information.size > entry.size:
        raise _tampered_error(archive, f"{information.name} is longer than its manifest says")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(stream, writer := _HashingWriter(file), _CHUNK_BYTES)
    if (writer.entry.sha256, writer.entry.size) != (entry.sha256, entry.size):
        raise _tampered_error(archive, f"{information.name} does not match its manifest")
    if entry.executable:
        target.chmod(target.stat().st_mode | 0o100)
    # An image unpacked again keeps the stamp of its first unpacking.
    os.utime(target, (int(SOURCE_DATE_EPOCH), int(SOURCE_DATE_EPOCH)))


def _check_room(manifest: Manifest, into: Path, archive: Path) -> None:
    """Refuse an archive that unpacks to more than the free disk space: compressed zeros could fill any disk."""
    needed_bytes, free_bytes = sum(entry.size for entry in manifest.files.values()), shutil.disk_usage(into.parent).free
    if needed_bytes > free_bytes:
        raise StoreError(
            f"not enough space: its contents need {needed_bytes / 2**20:.0f} MiB, and "
            f"{free_bytes / 2**20:.0f} MiB are free",
            where=Where(archive),
            remedy=f"free some space in {into.parent}; nothing was extracted",
        )
