"""The result of a search: the recipe, its gain on fresh blocks, the contribution of each setting, dropped levels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envmatrix.search.next_trials import REFERENCES, Batch, Search
from envmatrix.search.space import Space
from envmatrix.search.step_results import Confirmation, Step, no_op_levels, spent_s
from envmatrix.stats.best_environment import told_gain
from envmatrix.stats.comparisons.result import format_exact_ratio
from envmatrix.stats.effects import DISQUALIFYING_FLAGS, Effect, Flag, can_be_called_best
from envmatrix.stats.pairing import ratio_from_log
from envmatrix.stats.quality.contention import EXPLAINED, told_busy
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS
from envmatrix.stats.steady_state.effect import SteadyEffect

_WITHHELD_NOTES: Mapping[str, str] = {
    Flag.SLOW_TRIALS: f"; with outliers, a verdict needs {LEAST_BLOCKS} blocks",
    Flag.CONTENDED: f"; {EXPLAINED}",
}
#: Half-width of the model's ranges, in its standard deviations.
_REACH_SDS = 1.96


@dataclass(frozen=True)
class Contribution:
    """The model's estimate of what the recipe would lose without one setting, as a ratio.

    ``low`` to ``high`` is the model's own range, not a confidence interval. The model has picked the recipe itself, and
    it assumes that all configurations are equally noisy.
    """

    factor: str
    level: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class TuneAnswer(Confirmation):
    """The answer of a search. ``settings`` (factor -> level) are the recipe's, {} where nothing is shown to gain.

    ``effect`` is that of the ``tried`` recipe on fresh blocks (None: none were run), which chose nothing. ``dropped``
    says of a level or a cell why it is out. ``phases`` counts the trials of each, ``cells`` are all of the space,
    ``seen`` those that ran, ``ran_well`` whether any of them did. Of a search that was ``interrupted`` nothing is
    claimed: whoever read an interval and went on for a better one would look twice.
    """

    settings: Mapping[str, str]
    tried: Mapping[str, str]
    contributions: tuple[Contribution, ...]
    dropped: Mapping[str, str]
    phases: Mapping[str, int]
    cells: int
    seen: int
    spent_s: float
    ran_well: bool = True
    interrupted: bool = False

    @property
    def gain_by_node(self) -> str:
        """The recipe's gain on each node, the worst last; '' unless it ran on several."""
        if not self.nodes:
            return ""
        ratios = ", ".join(f"{format_exact_ratio(node_gain.ratio)} on {node_gain.node}" for node_gain in self.nodes)
        return (
            f"By node ({sum(node_gain.blocks for node_gain in self.nodes)} blocks): {ratios}; "
            f"{self.nodes[-1].node} is the worst."
        )

    @property
    def gain(self) -> float | None:
        """The ratio to report, for a recipe corrected for being reported only if its interval is above 1.

        It is that of later steps if the recipe is faster there.
        """
        effect, steady = self.effect, self.steady
        if effect is None or not (self.settings and effect.ratio and effect.low and effect.high and effect.error):
            return effect.ratio if effect else None
        ratio, low, error = effect.ratio, effect.low, effect.error
        if steady and is_faster_later(steady):
            error *= math.log(steady.high / steady.low) / math.log(effect.high / low)
            ratio, low = steady.ratio, steady.low
        return ratio_from_log(told_gain(math.log(ratio), math.log(low), error))

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        is_told = self.effect is not None and self.effect.low is not None
        busy = told_busy(self.effect.contended, "the baseline", "it") if self.effect and is_told else ""
        answer = f"{busy[:1].upper()}{busy[1:]}{self._answer_sentence}"
        return f"{answer} Equal work not checked." if self.unchecked and is_told else answer

    @property
    def _answer_sentence(self) -> str:
        effect, name = self.effect, settings_text(self.tried)
        if self.interrupted:
            return f"Not finished yet: {f'{name} is being confirmed' if self.tried else 'nothing is confirmed so far'}."
        if not self.ran_well:
            return "Nothing to recommend: no configuration had a successful trial together with the baseline."
        if effect is None or effect.ratio is None:
            return "Nothing to recommend: no configuration is expected to be better than the baseline."
        if effect.low is None or effect.high is None:
            are = "block is" if effect.blocks == 1 else "blocks are"
            return f"{name} was not confirmed: {effect.blocks} complete {are} too few for a verdict."
        interval_text = (
            f"(95 % CI {format_exact_ratio(effect.low)} to {format_exact_ratio(effect.high)}, "
            f"{effect.blocks} fresh blocks)"
        )
        ratio, metric = f"{format_exact_ratio(self.gain or effect.ratio)} times", self.metric
        if self.steady and can_be_called_best(effect) and (self.settings or self.steady.verdict == "slower"):
            return self._steady_sentence(self.steady, effect, f"{name} is {ratio} {metric.as_fast_as('the baseline')}")
        if self.settings:
            return f"{name} is {ratio} {metric.as_fast_as('the baseline')} {interval_text}."
        if not can_be_called_best(effect):
            reasons = ", ".join(sorted(DISQUALIFYING_FLAGS.intersection(effect.flags)))
            return f"{name} is not recommended ({reasons}), whatever its speed."
        withheld_note = _WITHHELD_NOTES.get(effect.withheld, "")
        return (
            f"Nothing is significantly {metric.said('faster')} than the baseline: {name} is {ratio} as "
            f"{metric.said('fast')} {interval_text}{withheld_note}."
        )

    def _steady_sentence(self, steady: SteadyEffect, effect: Effect, claim: str) -> str:
        """Return the answer about a recipe with an effect in later steps."""
        blocks = f"{effect.blocks} fresh blocks"
        first, later = (_bounds_text(bounds.low or 0.0, bounds.high or 0.0) for bounds in (effect, steady))
        when = f"{steady.time_range_text} of its steps"
        if self.settings and is_faster_later(steady):
            first = f"{self.trial} {format_exact_ratio(effect.ratio or 0.0)}, {first}"
            return f"{claim} in {when} (95 % CI {later}; {first}, {blocks})."
        verdict = "about as fast" if steady.verdict == "same" else steady.verdict
        later = f"{verdict} in {when} ({format_exact_ratio(steady.ratio)}, {later})"
        nothing = "" if self.settings else "Nothing to recommend: "
        return f"{nothing}{claim} in its {self.trial} (95 % CI {first}, {blocks}), but {later}."


def is_faster_later(steady: SteadyEffect | None) -> bool:
    """Return whether later steps are faster than the baseline's."""
    return steady is not None and steady.low > 1.0 and steady.verdict != "undecided"


def _bounds_text(low: float, high: float) -> str:
    return f"{format_exact_ratio(low)} to {format_exact_ratio(high)}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Format settings as text."""
    return ", ".join(f"{factor}={level}" for factor, level in settings.items()) or "the baseline"


def find_expected_best(search: Search, steps: Sequence[Step]) -> tuple[int, float]:
    """Return the best cell so far (0: none gains), and the ratio that the model expects of it, mostly too high."""
    batches = [step.batch for step in steps]
    posterior = search.posterior(batches)
    row = search.winner(batches, no_op_levels(search.space, steps), posterior)
    mean, _ = posterior.gain_distribution([row], search.columns[[row]])
    return row, ratio_from_log(mean[0])


def make_answer(
    search: Search, steps: Sequence[Step], sessions: Sequence[float] = (), *, interrupted: bool = False
) -> TuneAnswer:
    """Return the answer from the steps on disk; an ``interrupted`` search has no effect yet.

    ``sessions``: when the search began or was resumed.
    """
    space, batches = search.space, [step.batch for step in steps]
    confirmed = [step for step in steps if step.batch.phase == "confirm"]
    row = confirmed[-1].batch.rows[0] if confirmed else 0
    confirmation = (
        _without_premature_results(confirmed[-1].confirmation, interrupted=interrupted) if confirmed else Confirmation()
    )
    phases: Counter[str] = Counter()
    for batch in batches:
        phases[batch.phase] += batch.trials
    return TuneAnswer(
        **vars(confirmation),
        settings=space.levels_unlike_baseline(row) if _is_gain(confirmation) else {},
        tried=space.levels_unlike_baseline(row),
        contributions=contributions(search, batches, row) if row else (),
        dropped=_drop_reasons(search, steps),
        phases=dict(phases),
        cells=len(space.codes),
        seen=len({cell for batch in batches for cell in batch.rows}),
        spent_s=spent_s(steps, sessions),
        interrupted=interrupted,
        ran_well=any(np.isfinite(batch.scores[REFERENCES:]).any() for batch in batches),
    )


def _without_premature_results(confirmation: Confirmation, *, interrupted: bool) -> Confirmation:
    """Return a confirmation with only what may be told now."""
    effect = None if interrupted else confirmation.effect
    kept = replace(confirmation, effect=effect, steady=confirmation.steady if effect else None)
    if effect is None or effect.low is None:
        kept = replace(kept, cautions=(), nodes=())
    return kept if _is_gain(kept) else replace(kept, why=None)


def _is_gain(confirmation: Confirmation) -> bool:
    """Return whether the recipe is faster. With outliers, an interval above 1 may not be a verdict yet."""
    effect, steady = confirmation.effect, confirmation.steady
    if effect is None or not can_be_called_best(effect):
        return False
    is_faster = effect.low is not None and effect.low > 1.0 and effect.verdict != "undecided"
    return is_faster_later(steady) or (is_faster and not (steady and steady.verdict == "slower"))


def contributions(search: Search, batches: Sequence[Batch], row: int) -> tuple[Contribution, ...]:
    """Compare the recipe with itself without each setting, by the model of all readings before confirmation."""
    space, results = search.space, []
    posterior = search.posterior(batches)
    for factor in np.flatnonzero(space.codes[row]).tolist():
        reduced_codes = space.codes[[row, row]].copy()
        reduced_codes[1, factor] = 0
        reduced_row = space.row_of(reduced_codes[1])
        rows = [row, -1 if reduced_row is None else reduced_row]
        mean, covariance = posterior.gain_distribution(rows, posterior.terms.columns(reduced_codes))
        own_variance = posterior.own**2 * sum(item not in posterior.watched and item != 0 for item in rows)
        reach = _REACH_SDS * float(np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1] + own_variance))
        name, level = space.factors[factor], space.levels[factor][space.codes[row, factor]]
        change = float(mean[0] - mean[1])
        results.append(Contribution(name, level, *map(ratio_from_log, (change, change - reach, change + reach))))
    return tuple(sorted(results, key=lambda item: -item.ratio))


def _drop_reasons(search: Search, steps: Sequence[Step]) -> dict[str, str]:
    space = search.space
    status = search.known([step.batch for step in steps])
    reasons = {row: why for step in steps for row, why in step.reasons.items()}
    reasons_by_name = {_level_text(space, *level): why for level, why in no_op_levels(space, steps).items()}
    for factor, level in status.failing:
        failing_rows = [row for row in reasons if space.codes[row, factor] == level]
        simplest = min(failing_rows, key=lambda row: int((space.codes[row] > 0).sum()))
        reasons_by_name[_level_text(space, factor, level)] = reasons[simplest]
    failing_levels = set(status.failing)
    cells: dict[str, list[int]] = {}
    for row, why in reasons.items():
        if failing_levels.isdisjoint((factor, int(code)) for factor, code in enumerate(space.codes[row]) if code):
            cells.setdefault(why, []).append(row)
    for why, rows in cells.items():
        name = _cells_text(space, rows)
        reasons_by_name[name] = f"{reasons_by_name[name]}; others: {why}" if name in reasons_by_name else why
    return reasons_by_name


def _cells_text(space: Space, rows: Sequence[int]) -> str:
    """Name one cell by its settings, several cells by the settings that they share."""
    if len(rows) == 1:
        return settings_text(space.levels_unlike_baseline(rows[0]))
    first_settings = space.levels_unlike_baseline(rows[0])
    every = [space.levels_unlike_baseline(row).items() for row in rows]
    shared = dict(item for item in first_settings.items() if all(item in settings for settings in every))
    description = f"with {settings_text(shared)}" if shared else f"such as {settings_text(first_settings)}"
    return f"{len(rows)} configurations {description}"


def _level_text(space: Space, factor: int, level: int) -> str:
    return f"{space.factors[factor]}={space.levels[factor][level]}"
