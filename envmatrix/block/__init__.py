"""Run a block's processes on this machine and on nodes. Needs only Python 3.9 and its standard library."""
