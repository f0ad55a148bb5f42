"""Starts the command line (``command_line.py``): Python compiles this file at every start, and modules only once."""

from __future__ import annotations

import os
import sys

# If started by path, Python puts this folder first in its search path, but our modules are imported as bench.NAME.
if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]

from bench.command_line import main
from bench.errors import exit_now

if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
