"""Runs a cleanup command if envmatrix is killed, for processes that no supervisor can end, such as containers.

``process.py`` starts it (``python -I -S cleanup_watcher.py FD OWNER COMMAND...``; OWNER is the process that starts it).
A byte on the pipe FD ends it without action. If the pipe closes first, envmatrix was killed.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not os.read(int(sys.argv[1]), 1):
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - no shell: an argument list
