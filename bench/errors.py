"""Exceptions that end a run without a full record; only ``__main__`` prints them."""


class BenchError(Exception):
    """Invalid user input (an option, a file, a folder): one line, exit status 2."""


class RunError(Exception):
    """A failed run (wrong data on disk, no torch): one line, exit status 1."""


class SkipError(Exception):
    """The environment lacks what the workload needs: the message is ``record.skipped``, exit status 0."""
