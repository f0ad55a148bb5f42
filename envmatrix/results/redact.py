"""Anonymization of an older run: folders, user and hosts are replaced, and all numbers stay the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from envmatrix.errors import StoreError, Where
from envmatrix.results.anonymize import Anonymizer, is_anonymous_host
from envmatrix.results.folder import RunFolder
from envmatrix.system.atomic_files import read_text, read_whole_lines, store_error, whole_file, write_whole
from envmatrix.system.bench_options import without_userinfo
from envmatrix.system.json_parsing import parse_json, parse_json_line
from envmatrix.system.reading_with_retries import exists
from envmatrix.system.regular_files import decode_error_position

_RESTORE = "nothing was changed: restore the file from a copy, or run `envmatrix resume`, which sets such lines aside"
_Change = Callable[[Mapping[str, object]], Mapping[str, object]]


def redact(folder: RunFolder) -> tuple[str, ...]:
    """Rewrite run.json, history, trials and matrix, each atomically; return the names of the files that changed.

    names.json is written first, so that no name is lost and an interrupted call can be repeated. Runs are ordered by
    the age of run.json, which is kept. Raises StoreError if another envmatrix writes to the run.
    """
    folder.lock()
    try:
        folder.load()
        folder.remove_partial_lines()
        names = replace(folder.names, hosts=dict(folder.names.hosts or {}), again=True)
        run = _anonymized_document(read_text(folder.run_file), folder.run_file, names)
        names.save(folder.names_file)
        changed_files = {
            folder.trials_file: _rewrite_lines(folder.trials_file, names.trial),
            folder.looks_file: _rewrite_lines(folder.looks_file, names.trial),
            folder.history_file: _rewrite_lines(folder.history_file, lambda line: names.run(line, any_home=True)),
        }
        names.save(folder.names_file)
        changed_files[folder.matrix_file] = _rewrite_text(
            folder.matrix_file, lambda text: without_userinfo(names.without_user_folders(text))
        )
        changed_files[folder.run_file] = _rewrite_text(folder.run_file, lambda _: run)
    finally:
        folder.unlock()
    return tuple(file.name for file, changed in changed_files.items() if changed)


def has_personal_names(folder: RunFolder) -> bool:
    """Return whether a run without names.json (an older run) contains a real host name or a user's folder."""
    if exists(folder.names_file):
        return False
    names = replace(folder.names, hosts=None)
    run = parse_json(read_text(folder.run_file), folder.run_file)
    assert isinstance(run, dict)
    host = run.get("host")
    if _is_real_host(host.get("name") if isinstance(host, dict) else None) or names.run(run, any_home=True) != run:
        return True
    files = (folder.trials_file, folder.looks_file)
    lines = (json.loads(line) for file in files for _, line in read_whole_lines(file))
    return any(_is_real_host(line.get("node")) or names.trial(line) != line for line in lines)


def _is_real_host(host: object) -> bool:
    return isinstance(host, str) and any(name and not is_anonymous_host(name) for name in host.split(","))


def _anonymized_document(text: str, file: Path, names: Anonymizer) -> str:
    document = parse_json(text, file)
    assert isinstance(document, dict)
    anonymized = names.run(document, any_home=True)
    return text if anonymized == document else without_userinfo(json.dumps(anonymized, indent=1)) + "\n"


def _rewrite_text(file: Path, change: Callable[[str], str]) -> bool:
    """Rewrite a text file if it exists, and keep its modification time, by which runs are ordered."""
    if not exists(file):
        return False
    old_text, status = read_text(file), file.stat()
    new_text = change(old_text)
    if new_text == old_text:
        return False
    write_whole(file, new_text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return True


def _rewrite_lines(file: Path, change: _Change) -> bool:
    """Rewrite a file line by line; lines without a change stay byte for byte the same."""
    if not exists(file):
        return False
    is_changed = False
    try:
        with file.open("rb") as old_file, whole_file(file) as new_file:
            for number, line in enumerate(old_file, 1):
                new_line = _rewrite_line(line, change, file, number)
                is_changed = is_changed or new_line != line
                new_file.write(new_line)
    except OSError as error:
        raise store_error(error, file) from error
    return is_changed


def _rewrite_line(line: bytes, change: _Change, file: Path, number: int) -> bytes:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        where = Where(file, number, decode_error_position(error, file).column)
        raise StoreError("this line is damaged: not UTF-8 text", where=where, remedy=_RESTORE) from error
    document = parse_json_line(text, file, number, _RESTORE)
    try:
        new_document = change(cast("dict[str, object]", document))
    except (ValueError, RecursionError, AttributeError) as error:
        raise StoreError(f"this line is damaged: {error}", where=Where(file, number, 1), remedy=_RESTORE) from error
    if new_document == document:
        return line
    return without_userinfo(json.dumps(new_document, separators=(",", ":"))).encode() + b"\n"
