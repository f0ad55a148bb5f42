"""Bundles: folders with an environment's libraries, so that an export does not need envmatrix's cache."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from envmatrix.errors import InputError
from envmatrix.results import write_whole
from envmatrix.trials.environment_shell import Session

#: Marks a folder as a bundle, which the next export may replace.
_MARKER_FILE = "envmatrix-bundle.json"
_LIBRARY_FOLDER = "lib"


def make_bundle(folder: Path, session: Session, *, for_image: bool = False) -> tuple[str, ...]:
    """Copy the preloaded libraries of an environment into ``folder`` and return their paths in it.

    Bare names are returned unchanged. ``for_image``: the folder is only copied into an image, so its path may have
    blanks. Raises InputError for a folder with other content, and for libraries inside an image.
    """
    _check_bundle_folder(folder, for_image=for_image)
    source_folders = {path: _host_folder(session, path) for path in session.preload if "/" in path}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _MARKER_FILE, json.dumps({"schema": 1, "environment": session.environment.name}) + "\n")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary_folder:
        for library_folder in dict.fromkeys(source_folders.values()):
            shutil.copytree(
                library_folder, Path(temporary_folder) / _LIBRARY_FOLDER / library_folder.name
            )  # symbolic links become files
        shutil.rmtree(folder / _LIBRARY_FOLDER, ignore_errors=True)
        if source_folders:
            (Path(temporary_folder) / _LIBRARY_FOLDER).rename(folder / _LIBRARY_FOLDER)
    return tuple(
        f"{_LIBRARY_FOLDER}/{source_folders[path].name}/{PurePosixPath(path).name}" if path in source_folders else path
        for path in session.preload
    )


def bundle_paths(folder: str, preload: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of a bundle's files if the bundle is in ``folder``."""
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
    """Return the folder on this machine with the library that is preloaded as ``path``."""
    parent = str(PurePosixPath(path).parent)
    if session.engine.shares_files:
        return Path(parent)
    if mounted := session.prepared.mounted.get(parent):
        return Path(mounted)
    raise InputError(
        f"--bundle: the libraries are inside the image of engine {session.engine.name}",
        remedy="leave out --bundle, or use `--engine local`",
    )
