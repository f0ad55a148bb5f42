"""Elapsed time of a run's trials, several of which can be alive at a time."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable

from envmatrix.results.trial import TrialFacts


class ElapsedTime:
    """The seconds in which at least one trial was alive, so that the time of interleaved trials counts once.

    Interleaved trials start one after another, so each is alive for less time than the group. Gaps between trials do
    not count, and blocks on several nodes add up. ``trials`` is the number of trials counted. ``later_s``: the seconds
    in which processes went on after their trials.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.later_s = 0.0
        self.trials = 0
        self._spans: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        self._later_spans: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)

    def add(self, trial: TrialFacts) -> None:
        """Add one trial; an older one without a start time counts with its share of its group."""
        wall_s = trial.wall_s or 0.0
        self.trials += 1
        if trial.started is None:
            self.seconds += wall_s / (trial.together or 1)
            return
        end = trial.started + wall_s
        self.seconds += _newly_covered_s(self._spans[trial.block, trial.node], trial.started, end)
        if trial.later_s:
            self.later_s += _newly_covered_s(self._later_spans[trial.block, trial.node], end, end + trial.later_s)

    @property
    def mean_trial_s(self) -> float:
        """The mean time of a trial in seconds, with the time of interleaved trials shared among them."""
        return self.seconds / self.trials


def trials_elapsed_s(trials: Iterable[TrialFacts]) -> float:
    """Return the seconds in which at least one trial of a run was alive."""
    elapsed = ElapsedTime()
    for trial in trials:
        elapsed.add(trial)
    return elapsed.seconds + elapsed.later_s


def _newly_covered_s(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Add a span to sorted spans, and return the length that only it covers."""
    covered_before = covered_s(spans)
    bisect.insort(spans, (begin, end))
    return covered_s(spans) - covered_before


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total length covered by sorted spans, counting overlaps once."""
    covered, latest_end = 0.0, float("-inf")
    for begin, end in spans:
        covered += max(0.0, end - max(begin, latest_end))
        latest_end = max(latest_end, end)
    return covered
