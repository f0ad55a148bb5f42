"""Starts the processes of a block, on this machine and on nodes: standard library, Python 3.9, nothing of the rest."""
