"""A local conda channel: a folder with repodata.json and packages in conda's format (.tar.bz2)."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{PYTHON}/site-packages"
#: Placeholder in packages for the folder that they are installed into.
_PREFIX = "/opt/anaconda1anaconda2anaconda3"


def add(channel: Path, name: str, version: str, depends: Sequence[str], files: Mapping[str, str]) -> Path:
    """Add a package to a channel. A file's text may contain {prefix}; a text that begins with -> is a link."""
    index = {
        "name": name, "version": version, "build": "0", "build_number": 0, "depends": list(depends),
        "subdir": "linux-64", "arch": "x86_64", "platform": "linux",
    }  # fmt: skip
    (channel / "linux-64").mkdir(parents=True, exist_ok=True)
    file = channel / "linux-64" / f"{name}-{version}-0.tar.bz2"
    with tarfile.open(file, "w:bz2") as made:
        paths = [_put(made, path, text) for path, text in files.items()]
        _put(made, "info/index.json", json.dumps(index))
        _put(made, "info/paths.json", json.dumps({"paths_version": 1, "paths": paths}))
    sums = {kind: hashlib.new(kind, file.read_bytes()).hexdigest() for kind in ("md5", "sha256")}
    _list(channel, "noarch", {})
    _list(channel, "linux-64", {file.name: {**index, **sums, "size": file.stat().st_size}})
    return file


def add_python(channel: Path) -> Path:
    """Add a Python: a link to this one, in an environment that is laid out like a venv."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    files = {
        "bin/python": f"->{base}",
        "pyvenv.cfg": f"home = {base.parent}\nprompt = {{prefix}}\n",
        f"{SITE}/README.txt": "packages\n",
    }
    return add(channel, "python", f"{PYTHON}.0", (), files)


def _put(made: tarfile.TarFile, path: str, text: str) -> dict[str, object]:
    entry = tarfile.TarInfo(path)
    entry.mode = 0o755 if path.startswith("bin/") else 0o644
    if text.startswith("->"):
        entry.type, entry.linkname = tarfile.SYMTYPE, text[2:]
        made.addfile(entry)
        return {"_path": path, "path_type": "softlink"}
    data = text.replace("{prefix}", _PREFIX).encode()
    entry.size = len(data)
    made.addfile(entry, io.BytesIO(data))
    facts = {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(),
             "size_in_bytes": len(data)}  # fmt: skip
    return facts | ({"prefix_placeholder": _PREFIX, "file_mode": "text"} if "{prefix}" in text else {})


def _list(channel: Path, subdir: str, packages: Mapping[str, object]) -> None:
    file = channel / subdir / "repodata.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    body = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": {}, "repodata_version": 1}
    held = json.loads(file.read_text()) if file.exists() else body
    held["packages"].update(packages)
    file.write_text(json.dumps(held))
