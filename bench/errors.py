"""The ways a run can end without a full record; ``__main__`` alone prints them."""


class BenchError(Exception):
    """Something the user gave (an option, a file, a folder) cannot be used: one line, exit status 2."""


class RunError(Exception):
    """The run itself broke (wrong data on disk, no torch): one line, exit status 1."""


class SkipError(Exception):
    """The environment lacks what the workload needs: the message is ``record.skipped``, exit status 0."""
