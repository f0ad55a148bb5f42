"""Start of a block on a node: a copy of ``envmatrix/block`` that the node can read, and the ``sh`` lines to run it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from envmatrix import block
from envmatrix.block.block_instructions import (
    BUSY,
    CANNOT_WRITE,
    DELETED,
    NO_MODULE,
    NO_PIPES,
    NO_PYTHON,
    NOT_SEEN,
    OTHER_NODE,
)
from envmatrix.build.cache import disk_errors
from envmatrix.launchers.pending_block import Loss
from envmatrix.plan.export_lines import posix_quote
from envmatrix.system.bench_options import folder_digest

_SOURCE = Path(block.__file__).parent
_MAIN = '''\
"""Carries out a block's order on this node."""

import sys

from envmatrix.block.runner import main

sys.exit(main(sys.argv[1:]))
'''
#: Exit statuses of a job that stopped by itself, with their meaning.
STOPPED: Mapping[int, str] = {
    NO_PYTHON: "the node has no Python 3.9 or later, which starts the trials (`--modules`, under Slurm)",
    CANNOT_WRITE: "the node cannot write to the results folder",
    NO_MODULE: "the node cannot load a module that was asked for (the job's log has its words)",
    NO_PIPES: "the results folder's file system has no named pipes, which turns need: write `schedule: sequential`",
    NOT_SEEN: "the node does not see a file that the trials need",
    OTHER_NODE: "the job started again on another node than the one that began its block",
    BUSY: "others use more of the node than `busy` allows",
    DELETED: "it was deleted, or its time limit (`--time`) was reached",
}
#: Program that checks whether a Python is recent enough to start a block.
_VERSION_CHECK = "import sys; sys.exit(sys.version_info < (3, 9))"


def stop_reason(status: int, path: str = "") -> str:
    """Return why a job stopped by itself, with the path that was missing."""
    return STOPPED.get(status, f"its block runner ended with status {status}") + (f": {path}" if path else "")


def stopped_loss(status: int, node: str, path: str) -> Loss:
    """Return the loss of a job that stopped by itself, as its file says."""
    bad_node = "" if status in (OTHER_NODE, DELETED) else node
    reason = f"{stop_reason(status, path)} (node {node})"
    return Loss(f"exit {status}", reason, excused=True, give_up=status == DELETED, bad_node=bad_node)


def copy_package(folder: Path) -> Path:
    """Return a copy of ``envmatrix/block`` in ``folder``, which nodes can read; its name contains a digest."""
    package = folder / f"block-{folder_digest(_SOURCE).removeprefix('sha256:')[:16]}"
    if package.exists():
        return package
    draft = package.with_name(f".{package.name}")
    with disk_errors(package):
        shutil.rmtree(draft, ignore_errors=True)
        inside = draft / "envmatrix"
        shutil.copytree(_SOURCE, inside / "block", ignore=shutil.ignore_patterns("__pycache__"))
        (inside / "__init__.py").touch()
        (draft / "__main__.py").write_text(_MAIN, encoding="utf-8")
        draft.rename(package)
    return package


def start_lines(folder: Path, attempt: int, package: Path, modules: Iterable[str], who: str) -> list[str]:
    """Return the lines that execute an attempt's order; ``who`` is the shell text for NODE JOB RESTARTS."""
    return [
        f"cd {posix_quote(str(folder))} 2>/dev/null || exit {CANNOT_WRITE}",
        f'log=job-{attempt}.log; stop() {{ echo "$*" >stopped-{attempt}; exit "$1"; }}',
        *module_and_python_lines(modules, f'stop {NO_MODULE} "$node"', f'stop {NO_PYTHON} "$node"'),
        f'exec "$python" -I -S -B {posix_quote(str(package))} {posix_quote(str(folder))}/order-{attempt}.json {who}',
    ]


def module_and_python_lines(modules: Iterable[str], no_module: str, no_python: str) -> list[str]:
    """Return the lines that load modules and find a Python for the block: this one if it exists, otherwise python3.

    The command ``no_module`` gets the name of a module that cannot be loaded.
    """
    names = list(modules)
    return [
        *(["command -v module >/dev/null 2>&1 || . /etc/profile"] if names else []),
        *(
            f'module load {posix_quote(name)} 2>>"${{log:-/dev/null}}" || {no_module} {posix_quote(name)}'
            for name in names
        ),
        f"for python in {posix_quote(sys.executable)} python3 ''; do",
        f'  [ -n "$python" ] || {no_python}',
        f'  "$python" -I -S -c {posix_quote(_VERSION_CHECK)} 2>/dev/null && break',
        "done",
    ]
