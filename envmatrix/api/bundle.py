"""A folder that holds an environment's libraries: what is exported with it needs nothing of envmatrix's cache."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from envmatrix.errors import InputError
from envmatrix.results import write_whole
from envmatrix.trials.environment_shell import Session

#: Says that a folder is a bundle, which the next export may replace.
_MARKER_FILE = "envmatrix-bundle.json"
_LIBRARY_FOLDER = "lib"


def make_bundle(folder: Path, session: Session, *, for_image: bool = False) -> tuple[str, ...]:
    """Copy what an environment preloads into ``folder`` and return the files' paths in it; a bare name stays.

    ``for_image``: nothing is preloaded from the folder itself. Raises InputError for a folder that holds something
    else, and for libraries that lie in an image.
    """
    _check_bundle_folder(folder, for_image=for_image)
    source_folders = {path: _host_folder(session, path) for path in session.preload if "/" in path}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _MARKER_FILE, json.dumps({"schema": 1, "environment": session.environment.name}) + "\n")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary_folder:
        for library_folder in dict.fromkeys(source_folders.values()):
            shutil.copytree(
                library_folder, Path(temporary_folder) / _LIBRARY_FOLDER / library_folder.name
            )  # links become files
        shutil.rmtree(folder / _LIBRARY_FOLDER, ignore_errors=True)
        if source_folders:
            (Path(temporary_folder) / _LIBRARY_FOLDER).rename(folder / _LIBRARY_FOLDER)
    return tuple(
        f"{_LIBRARY_FOLDER}/{source_folders[path].name}/{PurePosixPath(path).name}" if path in source_folders else path
        for path in session.preload
    )


def bundle_paths(folder: str, preload: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of a bundle by their paths where it lies in ``folder``."""
    return tuple(f"{folder}/{path}" if "/" in path else path for path in preload)


def _check_bundle_folder(folder: Path, *, for_image: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--bundle: {folder} is not a folder", remedy="pass a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARKER_FILE).is_file():
        raise InputError(
            f"--bundle: {folder} is not empty, and `export --bundle` did not create it", remedy="pass a new folder"
        )
    if not for_image and re.search(r"[\s:]", str(folder)):
        raise InputError(
            f"--bundle: LD_PRELOAD cannot load files from {str(folder)!r}: the path contains a space or a colon",
            remedy="pass a folder without spaces and colons in its path",
        )


def _host_folder(session: Session, path: str) -> Path:
    """Return the folder of this machine that holds a library which is preloaded as ``path``."""
    parent = str(PurePosixPath(path).parent)
    if session.engine.shares_files:
        return Path(parent)
    if mounted := session.prepared.mounted.get(parent):
        return Path(mounted)
    raise InputError(
        f"--bundle: the libraries are inside the image of engine {session.engine.name}",
        remedy="leave out --bundle, or use `--engine local`",
    )
