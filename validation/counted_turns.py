"""Run ``bench`` in turns, and read the counters of its thread only in the turns that an argument of 0s and 1s chooses.

    python -m validation.counted_turns STEPS 0110 run --model mlp --steps 120 --gate none

Needs only what ``bench`` needs, so any Python with torch can run it.
"""

from __future__ import annotations

import sys

from bench import step_thread_account, trial_process
from bench.command_line import main
from bench.gate import Turn


class Turns:
    """Answers as the gate does, at once: each turn has the same number of steps."""

    def __init__(self, folder: str) -> None:
        self._steps = int(sys.argv[1])
        self._counted = iter(sys.argv[2])
        self._read = step_thread_account.attempt_read

    def turn(self, left: int) -> Turn:
        """Switch the counters on or off and return the next turn."""
        step_thread_account.attempt_read = self._read if next(self._counted) == "1" else _not_read
        return Turn(0, min(self._steps, left))

    def end(self) -> float | None:
        """Let the process end."""
        return None


def _not_read() -> None:
    return None


if __name__ == "__main__":
    trial_process.Gate = Turns  # type: ignore[assignment, misc]
    sys.exit(main(sys.argv[3:]))
