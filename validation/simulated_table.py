"""Error rates of real analyses of simulated runs, for each question and noise model.

Each run is a 2 x 2 factorial. Its third arm has the model's noise; the others have that of a quiet machine. The
analyses are those of real runs: ``estimate``, ``choose``, ``attribute`` and ``next_arms``; for gates and histories, the
functions behind ``compare`` and ``history``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from envmatrix.plan import Arm, Plan
from envmatrix.stats.attribution.main_effects import attribute_gain, find_cells
from envmatrix.stats.best_environment import choose_best_set
from envmatrix.stats.comparisons.result import status_of
from envmatrix.stats.effect_estimation import Analysis, estimate, is_blocked_by_slow_trials
from envmatrix.stats.effects import Flag
from envmatrix.stats.inference.change_points import change_points
from envmatrix.stats.inference.standard_errors import too_short
from envmatrix.stats.inference.welch import FEWEST_RUNS, compare_with_runs, mean_of_logs
from envmatrix.stats.measurements import Measurements, TrialOrder, first_blocks
from envmatrix.stats.metrics import METRICS, THROUGHPUT
from envmatrix.stats.pairing import log_ratios_over_copy_mean
from envmatrix.stats.quality.slow_trials import SlowTrials
from envmatrix.stats.stopping.racing import next_arms
from envmatrix.stats.trial_text_counts import ArmFacts
from validation.noise import NOISES
from validation.simulated import SIZE, Figure, Floats, rate
from validation.simulated_models import ARMS, LEVELS, LIMIT_S, MARKED, MODELS, SELECTED, TRIAL_S, Model, Trials

_BEST = ARMS[MARKED].name
#: Standard deviation of a run's day effect, and the runs of a history.
_DAY, _HISTORY = 0.02, 14
_BLOCKS = (10, 20, 40)
_COPIES = tuple(row for row, arm in enumerate(ARMS) if arm.environment in ("baseline", "control"))
#: For a run with slow phases: its intervals compared with the mean over its own duration only.
_OWN = "any misses the run's own mean"
#: For several interim analyses: compared with their target, which is the run's own mean only in a short run.
_CLAIMED = "looks: any misses what it claims"
#: Questions that need several analyses of a run use one run in this many.
_DEAR = 4


def plan_of(blocks: int, arms: tuple[Arm, ...] = ARMS) -> Plan:
    """Return the plan of a simulated run."""
    return Plan("table", arms, 1, 6, blocks, 1e-6, SIZE, 1e9)


def measured_of(logs: Floats, of: tuple[Arm, ...] = ARMS) -> Measurements:
    """Return a run's trials as they are read from disk."""
    arms, blocks = logs.shape
    none = np.full(logs.shape, np.nan)
    names = (*METRICS, "loss", "accuracy", "samples", "steps", "parameters", "load_1m", "steal_ticks", "mhz")
    table = dict.fromkeys(names, none)
    order = np.arange(arms)[:, None] + arms * np.arange(blocks)
    there = np.isfinite(logs)
    table |= {
        THROUGHPUT.name: np.exp(logs), "started": 1.7e9 + order * TRIAL_S,
        "trial_s": np.where(there, TRIAL_S * np.exp(-logs), np.nan),
    }  # fmt: skip
    facts = {
        arm.name: ArmFacts(
            outcomes=Counter(ok=int(row.sum()), timed_out=int((~row).sum())),
            longest_s=LIMIT_S if not row.all() else 9.0,
        )
        for arm, row in zip(of, there, strict=True)
    }
    nothing = np.empty(0, dtype=np.int64)
    trials = TrialOrder(nothing, nothing, nothing, np.empty(0), {})
    attempted = np.ones(logs.shape, dtype=np.bool_)
    return Measurements(tuple(facts), np.arange(blocks), table, facts, trials, (), attempted)


def _wrong(analysis: Analysis, truth: Mapping[str, float]) -> tuple[bool, bool]:
    """Return whether any interval, at worst with failed trials, misses the truth, and whether any verdict is false.

    The control's comparison has its own 95 % and is left out.
    """
    missed = false = False
    for effect in (one for one in analysis.primary_effects() if not one.is_control):
        true = np.exp(truth[effect.environment])
        low = effect.low if effect.worst is None else effect.worst
        high = effect.high if effect.best is None else effect.best
        missed |= low is not None and high is not None and not low <= true <= high
        claimed = effect.verdict in ("faster", "slower") and Flag.FAILS_MORE not in effect.flags
        false |= claimed and (effect.verdict == "faster") != (true > 1.0)
    return bool(missed), bool(false)


def _contrasts_wrong(measured: Measurements, truth: float) -> bool:
    levels = {name: dict(zip("xy", cell, strict=True)) for name, cell in LEVELS.items()}
    cells = find_cells(ARMS, levels, measured, THROUGHPUT)
    found = attribute_gain(cells, "w", "e") if cells else None
    true = {1: truth / 2, 2: truth}
    return any(
        item.estimate.low is not None
        and item.estimate.high is not None
        and not item.estimate.low <= np.exp(true[len(item.levels)]) <= item.estimate.high
        for item in (found.contrasts if found else ())
    )


Answers = Iterator[tuple[str, bool]]


def judged(drawn: Trials, blocks: int, parts: Collection[str]) -> Answers:
    """Yield, for each question, whether the analyses of one run err; ``parts`` are keys of ``PARTS``."""
    plan, measured = plan_of(blocks), measured_of(drawn.logs)
    for name in parts:
        yield from PARTS[name](plan, measured, drawn)


def _table_errs(plan: Plan, measured: Measurements, drawn: Trials) -> Answers:
    analysis = estimate(plan, measured, metrics=())
    missed, false = _wrong(analysis, _truth(drawn.truth))
    yield "difference: any false verdict", false
    yield "difference: any interval misses", missed
    if drawn.phases is not None:
        yield f"difference: {_OWN}", _wrong(analysis, _truth(drawn.own(len(measured.blocks))))[0]
    choice = choose_best_set(analysis, measured, [arm for arm in ARMS if arm.reference and not arm.is_control], {})
    yield "best set: lacks the best", choice is not None and (_BEST in choice.best_set) != (drawn.truth > 0)
    if np.isfinite(drawn.logs).all():
        yield "slow rate: interval misses", _rate_misses(analysis, 0.05)
        yield "gate in the same blocks: exit 5", _fails(analysis, drawn.truth)


def _attribution_errs(_plan: Plan, measured: Measurements, drawn: Trials) -> Answers:
    if np.isfinite(drawn.logs).all():
        yield "attribution: any interval misses", _contrasts_wrong(measured, drawn.truth)
        if drawn.phases is not None:
            yield f"attribution: {_OWN}", _contrasts_wrong(measured, drawn.own(len(measured.blocks)))


def _race_errs(plan: Plan, measured: Measurements, drawn: Trials) -> Answers:
    if np.isfinite(drawn.logs).all():
        race = next_arms(replace(plan, race=True), measured)
        yield "race: the best is lost", _BEST in {item.arm for item in race.stopped}


def _looks_err(plan: Plan, measured: Measurements, drawn: Trials) -> Answers:
    if len(measured.blocks) == max(_BLOCKS):
        read = _looks(plan, measured)
        wrong = [_wrong(one, _truth(drawn.truth)) for one in read]
        yield "looks: any interval ever misses", any(missed for missed, _ in wrong)
        yield "looks: any false verdict ever", any(false for _, false in wrong)
        if drawn.phases is not None:
            yield _CLAIMED, any(_claim_misses(one, drawn, count) for one, count in zip(read, _BLOCKS, strict=True))


#: Questions about one run; add further ones here or in one of these functions.
PARTS: Mapping[str, Callable[[Plan, Measurements, Trials], Answers]] = {
    "runs": _table_errs, "attribution": _attribution_errs, "race": _race_errs, "looks": _looks_err,
}  # fmt: skip
#: The questions about several runs, each with its own day.
DAYS = "days"


def _claim_misses(one: Analysis, drawn: Trials, blocks: int) -> bool:
    """Return whether any interval misses its target: the run's own mean if it is short, otherwise the long-run mean."""
    short = too_short(measured_of(drawn.logs[:, :blocks]).block_gaps)
    return _wrong(one, _truth(drawn.own(blocks) if short else drawn.truth))[0]


def _truth(gain: float) -> Mapping[str, float]:
    return {arm.environment: gain if arm.name == _BEST else 0.0 for arm in ARMS}


def _looks(plan: Plan, measured: Measurements) -> list[Analysis]:
    """Return the analyses of a run that is read, resumed and read again at the table's block counts."""
    return [
        estimate(replace(plan, looked=_BLOCKS[:at]), first_blocks(measured, count), metrics=())
        for at, count in enumerate(_BLOCKS)
    ]


def _fails(analysis: Analysis, gain: float) -> bool:
    """Return whether ``compare --rerun`` fails the marked arm as new side, if it is as fast as the baseline."""
    effect = analysis.find(_BEST)
    if (
        effect is None
        or effect.high is None
        or is_blocked_by_slow_trials(analysis, (ARMS[0].name, ARMS[MARKED].name), effect.blocks)
    ):
        return False
    return status_of(None, effect.high / float(np.exp(gain)), 0.0) == "slower"


def _judged_days(draw: Model, blocks: int, chance: np.random.Generator) -> Answers:
    """Yield whether a gate between stored runs and a history err, over runs with their own day effects."""
    runs = [draw(blocks, chance).logs for _ in range(_HISTORY)]
    days = chance.normal(0.0, _DAY, len(runs))
    means = [mean_of_logs(logs[MARKED] + day, 2) for logs, day in zip(runs, days, strict=True)]
    *olds, new = [mean for mean in means[: FEWEST_RUNS + 1] if mean]
    yield "gate of stored runs: exit 5", status_of(None, compare_with_runs(olds, new).high, 0.0) == "slower"
    ratios = [float(log_ratios_over_copy_mean(logs[[*_COPIES, MARKED]], len(_COPIES)).mean()) for logs in runs]
    yield "history: any change", bool(change_points(np.array(ratios)))


def _rate_misses(analysis: Analysis, share: float) -> bool:
    slow = analysis.slow[MARKED]
    low, high = SlowTrials(int(slow.sum()), slow.size, 0.0).share_interval
    return not low <= share <= high


def table(
    machine: str, runs: int, chance: np.random.Generator, ask: str | None = None, only: str | None = None
) -> list[Figure]:
    """Return the error rate of each question under each noise model, from ``runs`` runs, or fewer for slow questions.

    ``ask`` is one of ``PARTS`` or ``DAYS``: only that, with all runs; ``only`` is one noise model. The table has its
    own models, so it is computed once, for the first machine.
    """
    figures: list[Figure] = []
    if machine != next(iter(NOISES)):
        return figures
    for model, seed in zip(MODELS, chance.integers(2**32, size=len(MODELS)), strict=True):
        if only not in (None, model):
            continue
        for blocks in _BLOCKS if ask != "looks" else _BLOCKS[-1:]:
            hits: dict[str, list[bool]] = {}
            for question, err in _answers(model, blocks, runs, np.random.default_rng((seed, blocks)), ask):
                hits.setdefault(question, []).append(bool(err))
            figures += [
                rate(question, model, f"{blocks} blocks", np.array(found, dtype=np.bool_))
                for question, found in hits.items()
                if _asked(question, model)
            ]
    return figures


def _answers(model: str, blocks: int, runs: int, chance: np.random.Generator, ask: str | None) -> Answers:
    draw = MODELS[model]
    for run in range(runs):
        if ask != DAYS:
            parts = [ask] if ask else list(PARTS)[: None if run % _DEAR == 0 else 1]
            yield from judged(draw(blocks, chance), blocks, parts)
        if ask in (None, DAYS) and model not in SELECTED:
            yield from _judged_days(draw, blocks, chance)


def _asked(question: str, model: str) -> bool:
    """Return whether a question applies to a model: slow rates to "rare slow" only, few to ``SELECTED`` models."""
    if question.startswith("slow rate"):
        return model == "rare slow"
    return model not in SELECTED or question.startswith(("difference", "best set", "looks"))


def lines(figures: list[Figure]) -> list[str]:
    """Return the table: a row per question and block count, a column per noise model; * if 5 % is surely missed."""
    rows: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in figures:
        rows.setdefault((figure.question, figure.procedure), {})[figure.machine] = figure
    heads = list(MODELS)
    text = [f"| question | | runs | {' | '.join(heads)} |", f"|---|---|{'---:|' * (1 + len(heads))}"]
    for (question, blocks), found in sorted(rows.items(), key=lambda item: item[0][0]):
        shown = [f"{max(figure.runs for figure in found.values()):,}", *(_cell(found.get(model)) for model in heads)]
        text.append(f"| {question} | {blocks} | {' | '.join(shown)} |")
    return text


def _cell(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:.1%}{'*' if (figure.low or 0.0) > 0.05 else ''}"
