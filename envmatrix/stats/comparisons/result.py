"""Result of a comparison: whether the new side is slower than allowed, or why this is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from envmatrix.durations_and_sizes import MOST_BLOCKS, QUIET_FIRST, is_too_long_to_suggest
from envmatrix.errors import ExitCode, InputError, most_important_code, suggestion
from envmatrix.plan import Arm, shown_name
from envmatrix.results import Run
from envmatrix.stats.array_types import Floats
from envmatrix.stats.attribution.explanation import Explanation, to_json
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import Bounds, Contended, Flag, Verdict
from envmatrix.stats.inference.welch import FEWEST_RUNS
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of
from envmatrix.stats.quality.contention import EXPLAINED, told_busy
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.quality.failures import count_broken_and_run, surely_slower
from envmatrix.stats.stopping.plan_deviations import missing_trials_text
from envmatrix.stats.trial_text_counts import ArmFacts
from envmatrix.system.printable import html_lines

Status = Literal["slower", "not slower", "other work", "cannot say"]
_CODES: Mapping[Status, ExitCode] = {
    "other work": ExitCode.OTHER_WORK,
    "slower": ExitCode.SLOWER,
    "cannot say": ExitCode.UNDECIDED,
}
#: Larger slowdowns than this factor are not shown in percent.
_FAR = 10.0
#: A gate's half-width, as a share of what it allows, at which about nine of ten runs of two equal sides pass. Blocks
#: that seem to have slow phases by chance are included.
NARROW_ENOUGH = 0.55
_FLAG_TEXTS: Mapping[str, str] = {
    Flag.FAILS_MORE: "fails more often than its reference",
    Flag.REFERENCE_FAILS_MORE: "fails less often than its reference",
    Flag.UNPROVEN: "is not verified: not every setting was seen in its processes",
    Flag.NO_OP: "has no effect here: its reference already does the same",
}


@dataclass(frozen=True)
class SteadyComparison:
    """``new`` over ``old`` in the seconds ``since_s`` to ``until_s`` of the steps of processes that went on.

    The rest is as in ``ArmComparison``. ``trial`` says which steps a trial has.
    """

    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict
    status: Status
    since_s: float
    until_s: float
    trial: str = "first steps"

    @property
    def time_range_text(self) -> str:
        """Which seconds of the steps these are."""
        return f"seconds {self.since_s:.0f} to {self.until_s:.0f} of its steps"


@dataclass(frozen=True)
class ArmComparison:
    """``new`` over ``old`` in one metric: a ratio above 1 is faster. No interval where there are too few trials.

    ``status`` answers whether new is slower by more than ``allowed`` (a fraction): 'slower' when ``one_sided`` bounds
    say so, 'not slower' when they deny it, else 'cannot say'. Without these bounds (None: nothing is allowed, stored
    runs, or later steps decide too) the interval must say it. It is 'other work' if a check of equal work failed.
    ``runs`` counts the runs of one thing that ``new`` is compared with (0: both were measured in one run), and
    ``smallest`` is the smallest slow-down that would have been called slower; where there are too few runs, had all
    days been alike. ``wanted`` is after about how many blocks of one run it would be denied, were both alike.
    ``unsure`` is why nothing is said though there is an interval: a side has slow trials and too few blocks, or trials
    of new broke. ``other`` is what is compared where that is no speed, such as an accuracy. ``why`` explains a
    significant difference.

    All of this is of the trials. ``steady`` compares later steps; ``status`` is theirs unless they cannot say.
    """

    name: str
    old: str
    new: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    trials: tuple[int, int]
    allowed: float
    status: Status
    runs: int = 0
    smallest: float | None = None
    wanted: int | None = None
    unsure: str = ""
    other: str = ""
    machine: str = ""
    why: Explanation | None = None
    steady: SteadyComparison | None = None
    one_sided: Bounds | None = None

    @property
    def is_of_steady(self) -> bool:
        """Whether later steps decide ``status``."""
        return self.steady is not None and self.steady.status != "cannot say"

    @property
    def _question(self) -> str:
        """The question answered, such as 'slower by more than 3%'."""
        word, percent = "worse" if self.other else "slower", 100 * self.allowed
        exact = f"{percent:.1f}" if abs(percent - round(percent, 1)) < 1e-9 else f"{percent:.4g}"
        return f"{word} by more than {exact}%" if self.allowed else word

    def _opening(self, ratio: float) -> str:
        """Return the beginning of the sentence, up to the metric."""
        adjective, metric_text = ("good", f" in {self.other}") if self.other else ("fast", "")
        other_runs_text = f" and {self.runs - 1} more runs of the same work" if self.runs >= FEWEST_RUNS else ""
        return (
            f"{shown_name(self.name)}: {self.machine}{self.new} is {format_exact_ratio(ratio)} times as {adjective} as "
            f"{self.old}{other_runs_text}{metric_text}"
        )

    def line(self) -> str:
        """Return the result as one sentence."""
        slower, smallest, ratio = self._question, self.smallest, format_exact_ratio(self.ratio or 0.0)
        later_text = (
            f" ({format_exact_ratio(self.steady.ratio)} in {self.steady.time_range_text})" if self.steady else ""
        )
        if self.status == "other work":
            measured = f"; measured: {ratio} times as fast" if self.ratio and not self.other else ""
            return f"{shown_name(self.name)}: no comparison: {self.new} did other work than {self.old}{measured}"
        if self.ratio is not None and 0 < self.runs < FEWEST_RUNS:
            detectable_text = f" (if all days were alike, {_detectable_text(smallest)})" if smallest else ""
            return f"{self._opening(self.ratio)}{later_text}: cannot say whether it is {slower}{detectable_text}"
        if self.unsure and self.ratio is not None:
            return f"{self._opening(self.ratio)}: cannot say whether it is {slower}: {self.unsure}"
        if self.ratio is None or self.low is None or self.high is None:
            return f"{shown_name(self.name)}: cannot say: too few trials to compare {self.new} with {self.old}"
        other_words = {"faster": "better", "slower": "worse"} if self.other else {}
        verdict = other_words.get(self.verdict, self.verdict)
        first, later = _interval_text(self.low, self.high, verdict), self.steady
        if later is None:
            return f"{self._opening(self.ratio)}{first}: {self._answer}"
        opening = f"{self._opening(later.ratio)} in {later.time_range_text}"
        last = _interval_text(later.low, later.high, later.verdict)
        return f"{opening}{last}; {later.trial} {ratio}{first}: {self._answer}"

    @property
    def _answer(self) -> str:
        """The answer to the question, and what limits it."""
        later, smallest = self.steady, self.smallest
        of_trial = f" in its {later.trial}" if later and not self.is_of_steady else ""
        alike_text = f"; if both are equal, about {self.wanted:,} blocks would show it" if self.wanted else ""
        if self.wanted and is_too_long_to_suggest(0.0, self.wanted):
            alike_text = f"; if both are equal, more than {MOST_BLOCKS:,} blocks would show it: {QUIET_FIRST}"
        detectable_text = f" ({_detectable_text(smallest)}{alike_text}{of_trial})" if smallest else ""
        if self.status == "cannot say":
            return f"cannot say whether it is {self._question}{detectable_text}"
        verdict = later.verdict if later and self.is_of_steady else self.verdict
        is_small = (self.status, verdict) == ("slower", "same")
        margin_text = ", but within the design's margin, so its verdict is same" if is_small else ""
        return f"{'not ' if self.status == 'not slower' else ''}{self._question}{of_trial}{self._bound}{margin_text}"

    @property
    def _bound(self) -> str:
        """The one-sided bound, if the interval alone does not show the answer."""
        if not self.one_sided or self.is_of_steady or status_of(self.low, self.high, self.allowed) == self.status:
            return ""
        least, most = map(format_exact_ratio, self.one_sided)
        return f" (95 % sure to be {f'below {most}' if self.status == 'slower' else f'above {least}'})"


@dataclass(frozen=True)
class Comparison:
    """All requested comparisons, with simultaneous intervals; ``cautions`` are reasons to trust them less."""

    items: tuple[ArmComparison, ...]
    cautions: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of ``compare --fail-slower``: OTHER_WORK before SLOWER, otherwise FINE."""
        return self.gate()

    def gate(self, *, fail_slower: bool = True, fail_undecided: bool = False) -> ExitCode:
        """Return the exit code of a gate: 7 for other work, 5 for slower, 6 for 'cannot say', otherwise 0.

        Other work always fails; ``fail_slower`` and ``fail_undecided`` select whether the other two fail.
        """
        wanted = {"other work": True, "slower": fail_slower, "cannot say": fail_undecided}
        return most_important_code(*(_CODES[item.status] for item in self.items if wanted.get(item.status)))

    def to_json(self, exit_code: ExitCode | None = None) -> dict[str, object]:
        """Return the JSON document; ``exit_code`` is that of the command (None: that of a gate)."""
        code = self.exit_code if exit_code is None else exit_code
        items = [
            {**asdict(replace(item, why=None)), "why": to_json(item.why) if item.why else None} for item in self.items
        ]
        return {"schema": 1, "exit_code": int(code), "comparisons": items, "cautions": list(self.cautions)}

    def lines(self) -> list[str]:
        """Return the results and cautions as sentences."""
        short_comparisons = dict.fromkeys(
            (comparison.old, comparison.runs)
            for comparison in self.items
            if comparison.ratio and 0 < comparison.runs < FEWEST_RUNS
        )
        reasons = (
            f"{runs} runs of {old} are too few to know how much runs differ from day to day ({FEWEST_RUNS} "
            "are needed); comparing two environments of one run needs no more runs"
            for old, runs in short_comparisons
        )
        return [*(item.line() for item in self.items), *reasons, *(f"caution: {text}" for text in self.cautions)]

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return html_lines(self.lines())


def format_exact_ratio(value: float) -> str:
    """Format a ratio with three decimals, or with more if needed to show on which side of 1 it is."""
    digits = next((digits for digits in (3, 4, 5) if value == 1.0 or round(value, digits) != 1.0), 6)
    return f"{value:.{digits}f}" if value < 1000 else f"{value:.3g}"


def _interval_text(low: float | None, high: float | None, verdict: str) -> str:
    """Return an interval and its verdict in brackets; '' without an interval."""
    if low is None or high is None:
        return ""
    return f" (95 % CI {format_exact_ratio(low)} to {format_exact_ratio(high)}, {verdict})"


def _detectable_text(smallest: float) -> str:
    """Return which slowdown would have been detected; a very large one is shown as a factor."""
    if smallest > _FAR - 1.0:
        return f"only a slow-down of more than {_FAR:.0f} times would have been detected"
    return f"a measured difference of {smallest:.1%} would have been detected"


def status_of(low: float | None, high: float | None, allowed: float) -> Status:
    """Return the status of an interval of new over old for an ``allowed`` slowdown."""
    limit = 1.0 / (1.0 + allowed)
    if high is not None and high < limit:
        return "slower"
    return "not slower" if low is not None and low >= limit else "cannot say"


def smallest_detectable_slowdown(ratio: float | None, high: float | None, allowed: float) -> float | None:
    """Return the smallest slowdown that an interval of this width would have shown to exceed ``allowed``."""
    return (1.0 + allowed) * high / ratio - 1.0 if high is not None and ratio else None


def blocks_needed(low: float | None, high: float | None, blocks: int, allowed: float) -> int | None:
    """Return about how many blocks show 'not slower' in nine of ten runs if both sides are alike; None: enough now.

    Half of the log interval is then ``NARROW_ENOUGH`` of the allowed log slowdown. It shrinks with the square root of
    the blocks.
    """
    if low is None or high is None or allowed <= 0:
        return None
    needed = math.ceil(blocks * (math.log(high / low) / (2 * NARROW_ENOUGH * math.log1p(allowed))) ** 2)
    return needed if needed > blocks else None


def concluded(
    item: ArmComparison, facts: tuple[ArmFacts, ArmFacts], contended: Contended, at_best: float | None = None, *,
    pending: str = "", did_other_work: bool = False,
) -> ArmComparison:  # fmt: skip
    """Return a comparison with the answer of later steps, if any, and without one that another cause could explain.

    Causes are CPU contention, failed trials (``facts`` are those of old and new), the reason ``pending``, and other
    work of new. 'slower' remains if new is slower even ``at_best``, with old's failed trials as slow as possible.
    """
    if item.steady and item.is_of_steady:
        item, at_best = replace(item, status=item.steady.status), None
    failures = _failures_reason(item, *facts, at_best)
    if failures and item.verdict == "slower":
        item = replace(item, verdict="undecided")
    reason = pending or failures or (EXPLAINED if _contention_explains(item, contended) else "")
    item = replace(item, machine=told_busy(contended, item.old, item.new))
    if did_other_work:
        return replace(item, status="other work", smallest=None, wanted=None)
    return replace(item, status="cannot say", smallest=None, wanted=None, unsure=reason) if reason else item


def _failures_reason(item: ArmComparison, old: ArmFacts, new: ArmFacts, at_best: float | None) -> str:
    """Return why failed trials could explain the answer, as those might have been the slow ones; '' if they could not.

    This applies to 'not slower' if a larger share of new's trials failed, and to 'slower' if old's share is larger.
    """
    (old_broken, old_total), (new_broken, new_total) = count_broken_and_run([old]), count_broken_and_run([new])
    more = new_broken * max(1, old_total) - old_broken * max(1, new_total)
    is_sure = surely_slower(at_best, [old], 1.0 / (1.0 + item.allowed))
    if (item.status == "not slower" and more > 0) or (item.status == "slower" and more < 0 and not is_sure):
        return f"{new_broken} of {new_total} trials of {item.new} failed, {old_broken} of {old_total} of {item.old}"
    return ""


def _contention_explains(item: ArmComparison, contended: Contended) -> bool:
    """Return whether the answer is not the same for all possible influence of CPU contention."""
    if item.low is None or item.high is None or item.status == "cannot say" or item.other:
        return False
    low, high = item.one_sided or (item.low, item.high)
    if item.steady and item.is_of_steady:
        low, high = item.steady.low or low, item.steady.high or high
    return status_of(low * contended.low, high * contended.high, item.allowed) != item.status


def count_trials(measured: Measurements, arm: str, metric: Metric) -> int:
    """Return how many trials of an arm have a number."""
    return int(np.isfinite(signed_logs(measured, arm, metric)).sum())


def signed_logs(measured: Measurements, arm: str, metric: Metric) -> Floats:
    """Return the logs of an arm's trials (higher is better), with NaN for missing numbers."""
    return np.asarray(metric.sign * logs_of(measured.of(arm, metric.name)))


def find_arms(run: Run, name: str) -> list[Arm]:
    """Return the arms of the environment ``name``, or the one arm with that full name."""
    matching_arms = [arm for arm in run.plan.arms if name in (arm.environment, arm.name, arm.shown)]
    if not matching_arms:
        known_environments = {arm.environment for arm in run.plan.arms}
        raise InputError(f"run {run.name} has no environment {name!r}", remedy=suggestion(name, known_environments))
    return matching_arms


def flag_cautions(analysis: Analysis, arms: Iterable[str]) -> Iterator[str]:
    """Yield the cautions about these arms, each against its reference, from the run's own tables."""
    for effect in filter(None, map(analysis.find, arms)):
        yield from (f"{shown_name(effect.arm)} {text}" for flag, text in _FLAG_TEXTS.items() if flag in effect.flags)


def unchecked_work_cautions(run: Run, measured: Measurements, workloads: Iterable[str]) -> Iterator[str]:
    """Yield which workloads have no check of equal work, and which checks are unstable."""
    works = tuple(dict.fromkeys(workloads))
    for name in works:
        yield from unstable_checks(measured, run.plan, name).values()
    names = [name for name in works if unchecked(run.workloads.get(name))]
    if names:
        yield f"equal work not checked: {', '.join(names)} has no `check:` of a number that depends only on the work"


def missing_trials_cautions(run: Run, measured: Measurements) -> tuple[str, ...]:
    """Return a caution about trials of the plan that trials.jsonl lacks, if there are any."""
    missing = missing_trials_text(run.plan, measured)
    return (f"trials.jsonl has {missing}: their pairs do not count",) if missing else ()
