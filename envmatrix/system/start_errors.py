"""Reasons why a program does not start, and what to do about each."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from pathlib import Path

from envmatrix.system.regular_files import open_regular

_REMEDIES = {
    errno.ENOENT: "install it, or add its folder to PATH",
    errno.EACCES: "check that the file is executable, and that its file system is not mounted noexec",
    errno.ENOEXEC: "its file is for another processor, or a script without #! in the first line",
    errno.EAGAIN: "stop other processes, or raise the limit on them (ulimit -u, pids of the cgroup)",
    errno.ENOMEM: "free some memory",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.E2BIG: "start envmatrix with fewer environment variables: its arguments and variables are too long",
}
NOEXEC, NOT_EXECUTABLE = "its file system is mounted noexec", "it is not executable"
#: Bytes at the start of a file that name what starts it: `#!`, or the loader of an ELF file.
_HEAD_BYTES = 4096
_LOADER = re.compile(rb"\0(/[\w./+-]*/ld[\w.+-]*\.so[.\d]*)\0")


def start_remedy(number: int, program: str, folder: Path | None = None) -> str:
    """Return what to do about a program that did not start with the error ``number``; a relative path is in ``folder``.

    "No such file or directory" may mean the interpreter or the loader that the file names.
    """
    path = str(Path(folder or "", program)) if "/" in program else shutil.which(program) or ""
    reason = why_file_cannot_start(path) if number in (errno.ENOENT, errno.EACCES) and path else ""
    if reason == NOT_EXECUTABLE:
        return f"{reason}: chmod +x {program}"
    if reason:
        return f"{reason}: {'copy it to another one' if reason == NOEXEC else 'correct that, or name another program'}"
    head = _first_bytes(path)
    if number == errno.ENOENT and head:
        return _missing_starter(program, head)
    if number == errno.ENOEXEC and head.startswith(b"\x7fELF"):
        return "it was built for another processor: use a build for this machine"
    if number == errno.ENOEXEC and not head.startswith(b"#!"):
        return f"it has no #! in its first line: add one, or name its interpreter: bash {program}"
    return _REMEDIES.get(number, "`envmatrix doctor` looks at what is missing here")


def _first_bytes(path: str) -> bytes:
    try:
        with open_regular(Path(path)) as body:
            return body.read(_HEAD_BYTES)
    except OSError:
        return b""


def _missing_starter(program: str, head: bytes) -> str:
    if match := _LOADER.search(head):
        return f"it needs the loader {match[1].decode()}, which is not here: use a build for this system"
    line = head.removeprefix(b"#!").partition(b"\n")[0]
    if line.endswith(b"\r"):
        return f"its lines end as in Windows: sed -i 's/\\r$//' {program}"
    words = line.split() if head.startswith(b"#!") else []
    if words:
        name = words[0].decode(errors="replace")
        return f"its first line names {name}, which is not here: correct it, or write the interpreter before {program}"
    return _REMEDIES[errno.ENOENT]


def why_file_cannot_start(program: str) -> str:
    """Return why a path is no program that can be started; '' if it is one, or if there is no such file."""
    file = Path(program)
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return f"it is a link to {file.readlink()}, which does not exist" if file.is_symlink() else ""
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if mode & 0o111 and os.statvfs(file).f_flag & os.ST_NOEXEC:
        return NOEXEC
    return "" if os.access(file, os.X_OK) else NOT_EXECUTABLE
