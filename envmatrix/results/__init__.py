"""Result folders on disk: run.json with its history, the matrix, and one line of trials.jsonl per trial."""

from envmatrix.results.folder import RunFolder
from envmatrix.results.run_model import Change, Run
from envmatrix.results.trial import NodeCheck, Outcome, Reading, Trial, trial_from_line, trial_of
from envmatrix.system.atomic_files import read_json, write_user_path, write_whole

__all__ = [
    "Change",
    "NodeCheck",
    "Outcome",
    "Reading",
    "Run",
    "RunFolder",
    "Trial",
    "read_json",
    "trial_from_line",
    "trial_of",
    "write_user_path",
    "write_whole",
]
