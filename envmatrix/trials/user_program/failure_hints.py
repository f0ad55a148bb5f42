"""Hints for failed programs: modules, variables or paths that they may lack, from their last output."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from envmatrix.block.fork_limit import MOST_PROCESSES
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.system.start_errors import start_remedy
from envmatrix.trials.user_program.passed_variables import likely_needed_variables, missing_module_name

#: A path that leads out of the folder that it starts in.
_OUTSIDE_PATH = re.compile(r"(?:^|[\s'\"=(])(\.\./[^\s'\":,)]*)")

#: The benchmark's own last line if the system refused to start the program (bench/user_program.py).
_NOT_STARTED = re.compile(r"^bench: error: cannot start (.+): ([^:\n]+)$", re.MULTILINE)
_START_ERRORS = {os.strerror(number): number for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)}
_SYSTEM_HINTS = {
    r"^EOFError\b|No such device or address: '/dev/tty'": (
        "it reads its input, and a trial has no keyboard: pass the answers as options, or in a file: -- sh -c "
        "'PROGRAM <FILE'"
    ),
    r"^bdb\.BdbQuit\b": "it stops in a debugger: take out its breakpoint(), or: -- env PYTHONBREAKPOINT=0 PROGRAM",
    r"[Ii]nappropriate ioctl": (
        "it wants a terminal, and a trial has none: give it one: -- script -qec 'PROGRAM' /dev/null"
    ),
    r"Resource temporarily unavailable|can't start new thread|fork: retry": (
        f"it could start no more processes or threads: a trial may have {MOST_PROCESSES}, or fewer if `ulimit -u` "
        "says so"
    ),
}


def find_failure_hints(workload: Workload, image: Image, output: str, folder: Path, *, by_links: bool = True) -> str:
    """Return what a program on the command line may lack, with the option that supplies it; '' if unknown.

    ``output`` is the end of what it printed, ``folder`` the program's folder, which a trial may see ``by_links`` only.
    """
    passed_names = (*workload.pass_env, *workload.env)
    names = [name for name in likely_needed_variables((), output, places=False) if name not in passed_names]
    variables = f"it did not get {', '.join(names)} from your shell: --pass-env {','.join(names)}" if names else ""
    hints = [
        missing_module_hint(image, output, folder),
        start_hint(output, folder),
        variables,
        *keyboard_and_process_hints(output),
    ]
    hints += [outside_path_hint(workload, output)] if by_links else []
    return "; ".join(filter(None, hints))


def missing_module_hint(image: Image, output: str, folder: Path) -> str:
    """Return the module that the Python of a command-line program lacks, and the option to supply it; '' if none."""
    module = missing_module_name(output)
    if not module:
        return ""
    if image.requirements:
        return (
            f"{image.interpreter} with its requirements has no module {module!r}: add its package to the "
            "requirements file"
        )
    files = [name for name in ("requirements.txt", "pyproject.toml") if (folder / name).is_file()]
    file = next(iter(files), "requirements.txt")
    return (
        f"{image.interpreter} has no module {module!r}: install it there, use another Python (-- "
        f".venv/bin/python ...), or add requirements on top (-r {file})"
    )


def start_hint(output: str, folder: Path) -> str:
    """Return what to do about a program of ``folder`` that the system or its first line did not start; otherwise ''."""
    match = _NOT_STARTED.search(output)
    if match and match[2] in _START_ERRORS:
        return start_remedy(_START_ERRORS[match[2]], match[1], folder)
    if re.search(r"\\r\W{0,2}: No such file", output):  # of env(1), for #!/usr/bin/env python and a carriage return
        return "the lines of a script end as in Windows: sed -i 's/\\r$//' FILE"
    return ""


def keyboard_and_process_hints(output: str) -> list[str]:
    """Return hints for a program that waits for a keyboard, or could not start another process or thread."""
    return [hint for pattern, hint in _SYSTEM_HINTS.items() if re.search(pattern, output, re.MULTILINE)]


def outside_path_hint(workload: Workload, output: str) -> str:
    """Return a hint on the folders above a trial's, if the command or its output has a path with `..`; otherwise ''."""
    paths = (match[1] for text in (*workload.command, output) if (match := _OUTSIDE_PATH.search(text)))
    path = next(paths, "")
    return path and (
        f"{path} was not found: a container sees only the folders that are mounted, and a folder of links "
        "files up to two folders above the program's; use the absolute path"
    )
