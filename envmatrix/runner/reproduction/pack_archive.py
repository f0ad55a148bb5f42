"""The archive of a pack and its manifest, which lists every file with its size and sha256.

The bytes are reproducible. Every unpacked file is checked against the manifest; files it does not list are refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Annotated

from pydantic import Field, TypeAdapter, ValidationError

from envmatrix.build.cache import file_digest
from envmatrix.build.debian.minimal_base import SOURCE_DATE_EPOCH
from envmatrix.errors import StoreError, Where, where_in
from envmatrix.system.atomic_files import open_user_path, store_error
from envmatrix.system.json_parsing import json_error_and_offset
from envmatrix.system.regular_files import open_regular
from envmatrix.system.validation_messages import validation_message

SCHEMA = 1
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.json.sig"


@dataclass(frozen=True)
class Entry:
    """One file of a pack; ``executable`` marks a file of a user's program that can be started."""

    sha256: str
    size: Annotated[int, Field(alias="bytes", ge=0)]
    executable: bool = False


@dataclass(frozen=True)
class Manifest:
    """The list of a pack's files. ``images`` maps 'image@engine' to a digest, and to a file name if it was packed.

    ``left_out`` lists what the run also needs but the pack lacks, each as a sentence.
    """

    run: str
    created: str
    envmatrix: str
    files: Mapping[str, Entry]
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the manifest as JSON text; equal contents give equal text."""
        body = _MANIFEST.dump_python(self, by_alias=True, exclude_defaults=True)
        head = {"schema": SCHEMA, "run": self.run, "created": self.created, "envmatrix": self.envmatrix}
        images, files = (dict(sorted(body.pop(key, {}).items())) for key in ("images", "files"))
        return json.dumps({**head, "images": images, **body, "files": files}, indent=1) + "\n"


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(text: str, archive: Path) -> Manifest:
    """Parse a manifest; raise a StoreError that names the problem with the archive."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        message, position = json_error_and_offset(text, error)
        location = where_in(Path(MANIFEST_FILE), text, position)
        raise _manifest_error(archive, f"{location}: not valid JSON: {message}") from error
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise _manifest_error(archive, f"{MANIFEST_FILE} has no schema number")
    if schema > SCHEMA:
        raise StoreError(
            f"this pack has schema {schema}, newer than this envmatrix supports ({SCHEMA})",
            where=Where(archive),
            remedy="upgrade envmatrix; the archive was not changed",
        )
    try:
        manifest = _MANIFEST.validate_python({"envmatrix": "", **body})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        message = f"{MANIFEST_FILE} is not a manifest written by envmatrix ({place}: {validation_message(problem)})"
        raise _manifest_error(archive, message) from error
    unsafe_name = next((name for name in manifest.files if not is_safe(name)), None)
    if unsafe_name is not None:
        raise _manifest_error(archive, f"{unsafe_name!r} would be written outside the folder")
    packed = [bits["file"] for bits in manifest.images.values() if "file" in bits]
    missing_name = next((name for name in packed if name not in manifest.files), None)
    if missing_name is not None:
        raise _manifest_error(archive, f"image {missing_name!r} is not among its files")
    return manifest


def is_safe(name: str) -> bool:
    """Return whether a name is a plain relative path that stays inside the folder it is unpacked into."""
    path = PurePosixPath(name)
    is_plain = bool(name) and not path.is_absolute() and str(path) == name and "\\" not in name
    return is_plain and not any(part in ("..", ".") for part in path.parts) and all(ord(c) >= 32 for c in name)


def _manifest_error(archive: Path, message: str) -> StoreError:
    return StoreError(message, where=Where(archive), remedy="get the archive again; nothing was extracted")


def manifest_summary(manifest: Manifest) -> dict[str, object]:
    """Return a summary of a pack, for JSON output."""
    return {
        "run": manifest.run,
        "created": manifest.created,
        "envmatrix": manifest.envmatrix,
        "files": len(manifest.files),
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "left_out": list(manifest.left_out),
    }


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
            open_user_path(path) as raw,
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
