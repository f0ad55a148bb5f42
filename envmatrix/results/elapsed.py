"""How long the trials of a run took, of which several may be alive at a time."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable

from envmatrix.results.trial import Trial


class ElapsedTime:
    """The seconds in which a trial was alive, or several were: trials that take turns count once, not each.

    Those of a group start one after the other, so that each is alive for less time than all of them together. What
    lies between two trials does not count, nor does how many blocks run side by side. ``trials`` were counted.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.trials = 0
        self._spans: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)

    def add(self, trial: Trial) -> None:
        """Count one more; an old one, of which nobody knows when it started, by its share of its group."""
        wall_s = trial.wall_s or 0.0
        self.trials += 1
        if trial.started is None:
            self.seconds += wall_s / (trial.together or 1)
            return
        spans = self._spans[trial.block, trial.node]
        covered_before = covered_s(spans)
        bisect.insort(spans, (trial.started, trial.started + wall_s))
        self.seconds += covered_s(spans) - covered_before

    @property
    def mean_trial_s(self) -> float:
        """What a trial took in the mean, its share of the time of those that it took turns with."""
        return self.seconds / self.trials


def trials_elapsed_s(trials: Iterable[Trial]) -> float:
    """Return the seconds in which a trial of a run was alive, or several were."""
    elapsed = ElapsedTime()
    for trial in trials:
        elapsed.add(trial)
    return elapsed.seconds


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of what sorted spans cover."""
    covered, latest_end = 0.0, float("-inf")
    for begin, end in spans:
        covered += max(0.0, end - max(begin, latest_end))
        latest_end = max(latest_end, end)
    return covered
