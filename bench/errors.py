"""Exceptions that end a run without a full record, and how a process ends with one."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


class BenchError(Exception):
    """Invalid user input (an option, a file, a folder): one line, exit status 2."""


class RunError(Exception):
    """A failed run (wrong data on disk, no torch): one line, exit status 1."""


class SkipError(Exception):
    """The environment lacks what the workload needs: the message is ``record.skipped``, exit status 0."""


def print_error(error: object, status: int) -> int:
    """Print the one line of an error and return the exit status."""
    print("bench: error: " + " ".join(str(error).split()), file=sys.stderr)
    return status


def exit_now(status: int) -> NoReturn:
    """Exit without cleanup: unloading torch takes 0.4 to 0.7 s per run, and can hang if a rank's peers are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
