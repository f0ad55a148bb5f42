"""Programs that the system does not start: the reason and what to do, with real files."""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from envmatrix.build.python.interpreters import find_python, inspect_interpreter
from envmatrix.engines.local import _find_interpreter
from envmatrix.errors import EnvmatrixError, InputError, SkipEnvironmentError
from envmatrix.system.process import run
from envmatrix.trials.user_program.failure_hints import start_hint
from envmatrix.trials.user_program.preliminary_run import find_program

TRUE = Path(shutil.which("true")).read_bytes()
#: e_machine of another processor, at its place in the header (elf(5)).
OTHER_PROCESSOR = TRUE[:18] + (b"\x16\x00" if TRUE[18:20] != b"\x16\x00" else b"\x3e\x00") + TRUE[20:]
OTHER_LOADER = re.sub(rb"(/ld-[\w.-]+\.so\.)\d", rb"\g<1>9", TRUE)
OTHER_LIBRARY = TRUE.replace(b"libc.so.6\0", b"libq.so.6\0")
#: content and mode -> the end of the reason, and the remedy.
FILES = {
    "no first line": (b"echo\n", 0o755, "Exec format error", "name its interpreter: bash ./python"),
    "another processor": (OTHER_PROCESSOR, 0o755, "Exec format error", "built for another processor"),
    "no interpreter": (b"#!/opt/no/python -u\n", 0o755, "No such file", "its first line names /opt/no/python, which"),
    "line ends of Windows": (b"#!/bin/sh\r\necho\r\n", 0o755, "No such file", "sed -i 's/\\r$//' ./python"),
    "no loader": (OTHER_LOADER, 0o755, "No such file", "it needs the loader /lib"),
    "not executable": (b"#!/bin/sh\n", 0o644, "Permission denied", "it is not executable"),
}  # fmt: skip


def write(name, content, mode=0o755):
    Path(name).write_bytes(content)
    Path(name).chmod(mode)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", FILES)
def test_a_program_that_does_not_start_has_its_reason_and_what_to_do(kind):
    content, mode, reason, remedy = FILES[kind]
    write("python", content, mode)
    with pytest.raises(EnvmatrixError, match=f"cannot start ./python: {reason}") as told:
        run(["./python"], limit_s=20.0)
    assert remedy in told.value.remedy
    text = f"bench: error: cannot start ./python: {os.strerror(errno.ENOENT)}" if reason == "No such file" else (
        f"bench: error: cannot start ./python: {reason}"
    )  # fmt: skip
    assert remedy in start_hint(f"before\n{text}\n", Path.cwd())


@pytest.mark.parametrize("kind", FILES)
def test_a_python_that_does_not_start_is_told_with_the_reason(kind):
    content, mode, reason, remedy = FILES[kind]
    write("python", content, mode)
    with pytest.raises(SkipEnvironmentError, match=f"not a Python that starts on this machine: .*{reason}") as told:
        _find_interpreter("./python")
    assert remedy in told.value.remedy
    if kind != "not executable":
        with pytest.raises(InputError, match=f"is not a Python that starts: .*{reason}") as told:
            find_program(("./python", "x.py"))
        assert remedy in told.value.remedy


def test_a_python_without_a_library_names_the_library():
    write("python", OTHER_LIBRARY)
    with pytest.raises(EnvmatrixError, match=r"exit status 127: .*loading shared libraries: libq\.so\.6") as told:
        inspect_interpreter("./python")
    assert told.value.remedy == "install that library"


def test_another_program_and_a_python_that_is_killed_are_no_pythons():
    write("python", b"#!/bin/sh\necho hello\n")
    with pytest.raises(EnvmatrixError, match=r"\./python is no Python: it printed hello"):
        inspect_interpreter("./python")
    write("python", b"#!/bin/sh\nkill -ILL $$\n")
    with pytest.raises(EnvmatrixError, match=r"\./python was killed by SIGILL"):
        inspect_interpreter("./python")


def test_a_python_of_a_version_that_is_there_but_broken_is_told(monkeypatch):
    write("python3.99", b"#!/opt/no/python\n")
    monkeypatch.setenv("PATH", str(Path.cwd()))
    with pytest.raises(SkipEnvironmentError, match=r"3\.99 was not found .*; cannot start .*/python3\.99: No such"):
        find_python("3.99")


def test_a_file_system_without_execution_is_named():
    Path("noexec").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", "noexec"]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        write("noexec/run.sh", b"#!/bin/sh\n")
        with pytest.raises(InputError, match="its file system is mounted noexec") as told:
            find_program(("noexec/run.sh", "x"))
        assert told.value.remedy.startswith("name its interpreter: -- bash noexec/run.sh x; or copy it")
        with pytest.raises(EnvmatrixError, match="Permission denied") as told:
            run(["noexec/run.sh"], limit_s=20.0)
        assert told.value.remedy.startswith("its file system is mounted noexec")
    finally:
        subprocess.run(["umount", "-l", "noexec"], check=True)


def test_a_folder_a_broken_link_and_a_path_through_a_file_are_told():
    Path("folder").mkdir()
    Path("link").symlink_to("/opt/no/python")
    write("file", b"")
    for name, reason in (
        ("./folder", "it is a folder"), ("./link", "it is a link to /opt/no/python, which does not exist"),
        ("file/x", "Not a directory"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"cannot start '{name}': {reason}"):
            find_program((name,))


def test_env_that_misses_a_python_for_a_carriage_return_is_understood():
    write("run.py", b"#!/usr/bin/env python3\r\nprint()\r\n")
    done = subprocess.run(["./run.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "sed -i 's/\\r$//' FILE" in start_hint(done.stderr, Path.cwd())
    assert start_hint("FileNotFoundError: [Errno 2] No such file or directory: 'x'", Path.cwd()) == ""
