"""Waits beside a process that no supervisor can end (a container), and starts a command when envmatrix is killed.

``process.py`` runs this file alone (``python -I -S cleanup_watcher.py FD OWNER COMMAND...``; OWNER is its own process):
a byte on the pipe FD means that all is well, its end that envmatrix is gone.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not os.read(int(sys.argv[1]), 1):
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - no shell: an argument list
