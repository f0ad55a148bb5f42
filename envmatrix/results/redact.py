"""Write an older run anew so that it names no folder of a user, no user and no host; every figure stays as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from envmatrix.system.bench_options import without_userinfo
from envmatrix.errors import StoreError, Where
from envmatrix.system.regular_files import where_of
from envmatrix.system.atomic_files import os_error, read_text, read_whole_lines, whole_file, write_whole
from envmatrix.results.folder import RunFolder
from envmatrix.results.json_text import json_of, json_of_line
from envmatrix.results.anonymize import Names, is_no_hosts
from envmatrix.system.shared_files import exists

_RESTORE = "nothing was changed: restore the file from a copy, or `envmatrix resume` sets such lines aside"
_Change = Callable[[Mapping[str, object]], Mapping[str, object]]


def redact(folder: RunFolder) -> tuple[str, ...]:
    """Write run.json, history, trials and matrix anew, each whole or not at all; return the files that changed.

    names.json is written first, so that nothing is lost and a second start goes on where one ended. The run's place
    among others, by the age of run.json, stays. Raises StoreError when another envmatrix writes to the run.
    """
    folder.lock()
    try:
        folder.load()
        folder.mend()
        names = replace(folder.names, hosts=dict(folder.names.hosts or {}), again=True)
        run = _shown_document(read_text(folder.run_file), folder.run_file, names)
        names.save(folder.names_file)
        done = {
            folder.trials_file: _rewrite(folder.trials_file, names.trial),
            folder.looks_file: _rewrite(folder.looks_file, names.trial),
            folder.history_file: _rewrite(folder.history_file, lambda line: names.run(line, any_home=True)),
        }
        names.save(folder.names_file)
        done[folder.matrix_file] = _replace(folder.matrix_file, lambda text: without_userinfo(names.text(text)))
        done[folder.run_file] = _replace(folder.run_file, lambda _: run)
    finally:
        folder.unlock()
    return tuple(file.name for file, changed in done.items() if changed)


def names_somebody(folder: RunFolder) -> bool:
    """Whether a run that was written without names.json, as older ones were, names a host or a folder of a user."""
    if exists(folder.names_file):
        return False
    names = replace(folder.names, hosts=None)
    run = json_of(read_text(folder.run_file), folder.run_file)
    assert isinstance(run, dict)
    host = run.get("host")
    if _is_real(host.get("name") if isinstance(host, dict) else None) or names.run(run, any_home=True) != run:
        return True
    files = (folder.trials_file, folder.looks_file)
    lines = (json.loads(line) for file in files for _, line in read_whole_lines(file))
    return any(_is_real(line.get("node")) or names.trial(line) != line for line in lines)


def _is_real(host: object) -> bool:
    return isinstance(host, str) and any(name and not is_no_hosts(name) for name in host.split(","))


def _shown_document(text: str, file: Path, names: Names) -> str:
    body = json_of(text, file)
    assert isinstance(body, dict)
    found = names.run(body, any_home=True)
    return text if found == body else without_userinfo(json.dumps(found, indent=1)) + "\n"


def _replace(file: Path, change: Callable[[str], str]) -> bool:
    """Change a text file that there may be; its time stays, as runs are found by it."""
    if not exists(file):
        return False
    before, stamp = read_text(file), file.stat()
    after = change(before)
    if after == before:
        return False
    write_whole(file, after)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return True


def _rewrite(file: Path, change: _Change) -> bool:
    """Change a file line by line; lines that need none stay byte for byte."""
    if not exists(file):
        return False
    changed = False
    try:
        with file.open("rb") as old, whole_file(file) as new:
            for number, line in enumerate(old, 1):
                found = _line(line, change, file, number)
                changed = changed or found != line
                new.write(found)
    except OSError as error:
        raise os_error(error, file) from error
    return changed


def _line(line: bytes, change: _Change, file: Path, number: int) -> bytes:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        where = Where(file, number, where_of(error, file).column)
        raise StoreError("this line is damaged: not UTF-8 text", where=where, remedy=_RESTORE) from error
    body = json_of_line(text, file, number, _RESTORE)
    try:
        found = change(cast("dict[str, object]", body))
    except (ValueError, RecursionError, AttributeError) as error:
        raise StoreError(f"this line is damaged: {error}", where=Where(file, number, 1), remedy=_RESTORE) from error
    return line if found == body else without_userinfo(json.dumps(found, separators=(",", ":"))).encode() + b"\n"
