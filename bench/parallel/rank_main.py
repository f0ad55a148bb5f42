"""The process of one rank, ``python -m bench.parallel.rank_main JOB RANK``; only the supervisor starts it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

from bench import record, trial_process
from bench.errors import BenchError, RunError, exit_now, print_error
from bench.evidence import stop_and_continue_count
from bench.parallel.rank_member import Member


def main(argv: Sequence[str]) -> int:
    """Run the rank and write its record; after a failure, the last line of its log is the reason."""
    with open(argv[0], encoding="utf-8") as file:
        job = json.load(file)
    rank = int(argv[1])
    try:
        stop_and_continue_count.watch()
        document = trial_process.run(job["options"], job["data_dir"], Member(job, rank))
        if document is not None:  # None only for supervisors of nodes
            record.write(document, os.path.join(job["folder"], f"rank-{rank}.json"))
    except (BenchError, RunError) as error:
        exit_now(print_error(error, 2 if isinstance(error, BenchError) else 1))
    except Exception as error:
        traceback.print_exc()
        exit_now(print_error(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
