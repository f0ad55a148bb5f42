"""Find a container's processes by the marker folder that is mounted into it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from envmatrix.engines.base import Job
from envmatrix.engines.local import file_safe_name


def marker_name(job: Job) -> str:
    """Return the name of a job's marker folder, made of run and trial."""
    return f"{file_safe_name(job.run)}.{file_safe_name(job.label)}"


def marked_processes(marker: str) -> list[int]:
    """Return the processes that have a marker folder, or one with this prefix, in their mount table.

    If Apptainer is killed, its container's processes are no longer its children, and their command line and variables
    are the job's own. Only their mounts identify them (proc_pid_mountinfo(5)).
    """
    processes = []
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            mounts = table.read_text(encoding="utf-8", errors="replace")
            if any(_is_mounted(line, marker) for line in mounts.splitlines()):
                processes.append(int(table.parent.name))
    return processes


def _is_mounted(line: str, marker: str) -> bool:
    fields = line.split(" ")
    return len(fields) > 4 and fields[4].endswith("/mnt") and _last_path_parts(marker) in fields[3]


def _last_path_parts(marker: str) -> str:
    """Return the last two parts of a path: a mount's root is relative to its own file system."""
    return "/" + "/".join(marker.split("/")[-2:])
