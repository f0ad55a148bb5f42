"""results/RUN/ on disk: run.json, and a line of trials.jsonl for every trial."""

from envmatrix.store.folder import (
    Outcome,
    Run,
    RunFolder,
    Trial,
    check_schema,
    read_json,
    run_from_json,
    run_to_json,
    trial_from_line,
    trial_of,
    without_record,
    write_whole,
)

__all__ = [
    "Outcome",
    "Run",
    "RunFolder",
    "Trial",
    "check_schema",
    "read_json",
    "run_from_json",
    "run_to_json",
    "trial_from_line",
    "trial_of",
    "without_record",
    "write_whole",
]
