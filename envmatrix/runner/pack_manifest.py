"""The manifest of a pack: every file with its size and sha256. Files that it does not list are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from envmatrix.errors import StoreError, Where, where_in
from envmatrix.system.json_text import json_error
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
        message, position = json_error(text, error)
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
