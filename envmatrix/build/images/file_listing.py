"""List the files of an image independently of the engine; equal digests mean equal content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from envmatrix.build.cache import Cache
from envmatrix.system.regular_files import read_bytes

#: Paths that engines mount over or write to, and bench/, which has its own digest and is mounted during trials.
ENGINE_PATHS = (
    "/.dockerenv", "/.exec", "/.run", "/.shell", "/.singularity.d", "/.test", "/dev", "/environment",
    "/envmatrix/bench", "/envmatrix/data", "/etc/group", "/etc/hostname", "/etc/hosts", "/etc/localtime", "/etc/mtab",
    "/etc/passwd", "/etc/resolv.conf", "/etc/timezone", "/home", "/mnt", "/proc", "/root", "/run", "/singularity",
    "/sys", "/tmp", "/var/tmp", "/work",  # noqa: S108 - inside a container
)  # fmt: skip
#: Program for the Python inside: lists a folder except the given paths. Each line has kind, mode, content hash and
#: path. Times and owners are left out (SIFs store no owners); for files that only root can read it lists the size.
LISTING_PROGRAM = r"""
import hashlib, json, os, stat, sys
top, left_out = os.fsencode(sys.argv[1]), set(map(os.fsencode, json.loads(sys.argv[2])))
def body(path, found):
    if stat.S_ISLNK(found.st_mode):
        return hashlib.sha256(os.readlink(path)).hexdigest()
    if not stat.S_ISREG(found.st_mode):
        return "-"
    if not found.st_mode & 4:
        return str(found.st_size)
    total = hashlib.sha256()
    with open(path, "rb") as source:
        for piece in iter(lambda: source.read(1 << 20), b""):
            total.update(piece)
    return total.hexdigest()
def walk(path):
    found = os.lstat(path)
    name = path[len(top.rstrip(b"/")):] or b"/"
    mode = "%s %04o" % (stat.filemode(found.st_mode)[0], found.st_mode & 0o777)
    print(mode, body(path, found), json.dumps(os.fsdecode(name))[1:-1])
    if stat.S_ISDIR(found.st_mode) and found.st_mode & 5 == 5:
        for name in sorted(os.listdir(path)):
            if os.path.join(path, name) not in left_out:
                walk(os.path.join(path, name))
walk(top)
"""


def listing_argv(python: str, folder: str, left_out: Iterable[str] = ()) -> list[str]:
    """Return the command that lists the files of a folder, run with a Python inside."""
    return [python, "-I", "-c", LISTING_PROGRAM, folder, json.dumps(list(left_out))]


def store_listing(cache: Cache, text: str) -> str:
    """Store a listing in the cache; return its digest."""
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    file = listing_file(cache, digest)
    if not file.exists():
        cache.write(file, text)
    return digest


def listing_file(cache: Cache, digest: str) -> Path:
    """Return the path of a listing, which exists if this machine has seen such an image."""
    return cache.root / "listings" / f"{digest.removeprefix('sha256:')}.txt"


def listing_differences(cache: Cache, old_digest: str, new_digest: str) -> list[str]:
    """Return the paths that differ between two images; empty if one of their listings is not stored here."""
    try:
        old_entries, new_entries = (_entries(listing_file(cache, digest)) for digest in (old_digest, new_digest))
    except (OSError, UnicodeDecodeError):
        return []
    paths = sorted(path for path in {**old_entries, **new_entries} if old_entries.get(path) != new_entries.get(path))
    return [f"{path} {_describe_change(old_entries.get(path), new_entries.get(path))}" for path in paths]


def _entries(file: Path) -> dict[str, list[str]]:
    lines = read_bytes(file).decode().splitlines()
    return {words[3]: words[:3] for line in lines if len(words := line.split(" ", 3)) == 4}


def _describe_change(old_entry: list[str] | None, new_entry: list[str] | None) -> str:
    if old_entry is None:
        return "is new"
    if new_entry is None:
        return "is gone"
    return "has different permissions" if (old_entry[0], old_entry[2]) == (new_entry[0], new_entry[2]) else "is another"
