"""Starts the supervisor as a module, because Python compiles a script again at every start.

``python -I -S supervisor_entry.py FD OWNER``, see ``process_supervisor.py``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/")[0])  # at the end: its other modules are named like some of the library
    sys.dont_write_bytecode = True
    __import__("process_supervisor").main(int(sys.argv[1]))
