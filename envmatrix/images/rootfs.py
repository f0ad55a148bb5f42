"""One digest for a root file system, whichever engine shows it."""

from __future__ import annotations

#: Runs on the Python inside. Engines lay files of their own over a few places; these, and what only root may
#: read, are left out. Times and owners are left out too: SIFs squash owners.
PROGRAM = r"""
import hashlib, os, stat
total = hashlib.sha256()
roots = ["/usr", "/opt", "/envmatrix/bench", "/var/lib/dpkg/status", "/etc/debian_version", "/etc/ld.so.cache"]
def add(path):
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFLNK:
        body = os.readlink(path).encode()
    elif kind == stat.S_IFREG and found.st_mode & 4:
        file = hashlib.sha256()
        with open(path, "rb") as source:
            while True:
                piece = source.read(1 << 20)
                if not piece:
                    break
                file.update(piece)
        body = file.digest()
    elif kind == stat.S_IFDIR:
        body = b"/"
    else:
        return
    total.update(path.encode("utf-8", "surrogateescape") + b"\0" + oct(found.st_mode & 0o777).encode() + b"\0" + body)
def walk(path):
    add(path)
    if os.path.isdir(path) and not os.path.islink(path):
        try:
            names = sorted(os.listdir(path))
        except PermissionError:
            return
        for name in names:
            walk(os.path.join(path, name))
for root in roots:
    if os.path.lexists(root):
        walk(root)
print("sha256:" + total.hexdigest())
"""
