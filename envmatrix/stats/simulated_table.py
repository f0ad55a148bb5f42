"""Question by question, noise model by noise model: how often real analyses of made-up runs err.

Each run is a 2 x 2 factorial whose third arm has the noise of the model; the others have that of a quiet machine. It is
judged by ``estimate``, ``choose``, ``attribute`` and ``next_arms``, as a run on disk is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from envmatrix.plan import Plan, make_arms
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.attribution import attribute, find_cells
from envmatrix.stats.effects import Flag
from envmatrix.stats.measurements import ArmFacts, Measurements, TrialOrder
from envmatrix.stats.metrics import METRICS, THROUGHPUT
from envmatrix.stats.noise import NOISES, drifting
from envmatrix.stats.racing import next_arms
from envmatrix.stats.selection import choose
from envmatrix.stats.simulated import SIZE, Figure, Floats, rate
from envmatrix.stats.slow_trials import SlowTrials

#: One environment is truly faster than all others, by 5 %.
_GAIN = float(np.log(1.05))
_TRIAL_S, _LIMIT_S = 7.6, 60.0
_ARMS = make_arms(("a", "b", "ab"), ("w",), ("e",), "baseline")
_LEVELS = {"baseline": ("0", "0"), "a": ("1", "0"), "b": ("0", "1"), "ab": ("1", "1")}
_MARKED = next(row for row, arm in enumerate(_ARMS) if arm.environment == "ab")


@dataclass(frozen=True)
class Trials:
    """Log speeds (arms, blocks) of a run, NaN where a trial timed out, and the marked arm's true log effect."""

    logs: Floats
    truth: float = _GAIN


Model = Callable[[int, np.random.Generator], Trials]


def _quiet(blocks: int, chance: np.random.Generator) -> Floats:
    logs = chance.normal(0.0, SIZE, (len(_ARMS), blocks))
    logs[_MARKED] += _GAIN
    return logs


def _normal(blocks: int, chance: np.random.Generator) -> Trials:
    return Trials(_quiet(blocks, chance))


def _unequal(blocks: int, chance: np.random.Generator) -> Trials:
    logs = _quiet(blocks, chance)
    logs[_MARKED] += chance.normal(0.0, 4 * SIZE, blocks)
    return Trials(logs)


def _drift(blocks: int, chance: np.random.Generator) -> Trials:
    walk = drifting(1, blocks * len(_ARMS), SIZE, chance).reshape(blocks, len(_ARMS))
    shuffled = chance.permuted(walk, axis=1).T
    shuffled[_MARKED] += _GAIN
    return Trials(shuffled)


def _phases(blocks: int, chance: np.random.Generator) -> Trials:
    """Slow and fast phases of 40 s on average; the marked arm is 10 % slower in the slow ones."""
    ends = np.cumsum(chance.exponential(40.0, int(blocks * len(_ARMS) * _TRIAL_S / 10) + 100))
    begins = (np.arange(blocks) * len(_ARMS) + chance.integers(0, len(_ARMS), blocks)) * _TRIAL_S
    slow = (np.searchsorted(ends, begins) + chance.integers(0, 2)) % 2
    logs = _quiet(blocks, chance)
    logs[_MARKED] += 0.1 * (0.5 - slow)
    return Trials(logs)


def _slow_processes(share: float, by: float, *, rare: bool) -> Model:
    """Return a model where a ``share`` of the marked arm's processes is slower; the effect is without them if rare."""

    def draw(blocks: int, chance: np.random.Generator) -> Trials:
        logs = _quiet(blocks, chance)
        logs[_MARKED] -= np.log(by) * ((chance.random(blocks) < share) - (0.0 if rare else share))
        return Trials(logs)

    return draw


def _heavy(blocks: int, chance: np.random.Generator) -> Trials:
    logs = chance.standard_t(3, (len(_ARMS), blocks)) * SIZE
    logs[_MARKED] += _GAIN
    return Trials(logs)


def _failing(blocks: int, chance: np.random.Generator) -> Trials:
    """Let the slowest fifth of the marked arm's processes time out: it is as fast as the others, and seems faster."""
    logs = _quiet(blocks, chance)
    own = chance.normal(0.0, 3 * SIZE, blocks)
    logs[_MARKED] = np.where(own < 3 * SIZE * -0.8416, np.nan, own)
    return Trials(logs, 0.0)


MODELS: Mapping[str, Model] = {
    "normal": _normal,
    "unequal variances": _unequal,
    "drift": _drift,
    "phases": _phases,
    "rare slow": _slow_processes(0.05, 2.0, rare=True),
    "two modes": _slow_processes(0.4, 1.25, rare=False),
    "heavy tails": _heavy,
    "failures": _failing,
}


def _plan(blocks: int) -> Plan:
    return Plan("table", _ARMS, 1, 6, blocks, 1e-6, SIZE, 1e9)


def _measured(logs: Floats) -> Measurements:
    """Return a run's trials as they are read from disk."""
    arms, blocks = logs.shape
    none = np.full(logs.shape, np.nan)
    names = (*METRICS, "loss", "accuracy", "samples", "steps", "parameters", "load_1m", "steal_ticks", "mhz")
    table = dict.fromkeys(names, none)
    order = np.arange(arms)[:, None] + arms * np.arange(blocks)
    there = np.isfinite(logs)
    table |= {
        THROUGHPUT.name: np.exp(logs), "started": 1.7e9 + order * _TRIAL_S,
        "trial_s": np.where(there, _TRIAL_S * np.exp(-logs), np.nan),
    }  # fmt: skip
    facts = {
        arm.name: ArmFacts(
            outcomes=Counter(ok=int(row.sum()), timed_out=int((~row).sum())),
            longest_s=_LIMIT_S if not row.all() else 9.0,
        )
        for arm, row in zip(_ARMS, there, strict=True)
    }
    nothing = np.empty(0, dtype=np.int64)
    trials = TrialOrder(nothing, nothing, nothing, np.empty(0), {})
    attempted = np.ones(logs.shape, dtype=np.bool_)
    return Measurements(tuple(facts), np.arange(blocks), table, facts, trials, (), attempted)


def _wrong(analysis: Analysis, truth: Mapping[str, float]) -> tuple[bool, bool]:
    """Return whether any interval misses the truth, at worst where trials broke, and whether any verdict is false.

    The control's comparison promises its own 95 % and is left out.
    """
    missed = false = False
    for effect in (one for one in analysis.primary_effects() if not one.is_control):
        true = np.exp(truth[effect.environment])
        low, high = effect.low if effect.worst is None else effect.worst, effect.high
        missed |= low is not None and high is not None and not low <= true <= high
        claimed = effect.verdict in ("faster", "slower") and Flag.FAILS_MORE not in effect.flags
        false |= claimed and (effect.verdict == "faster") != (true > 1.0)
    return bool(missed), bool(false)


def _contrasts_wrong(measured: Measurements, truth: float) -> bool:
    levels = {name: dict(zip("xy", cell, strict=True)) for name, cell in _LEVELS.items()}
    cells = find_cells(_ARMS, levels, measured, THROUGHPUT)
    found = attribute(cells, "w", "e") if cells else None
    true = {1: truth / 2, 2: truth}
    return any(
        item.estimate.low is not None
        and item.estimate.high is not None
        and not item.estimate.low <= np.exp(true[len(item.levels)]) <= item.estimate.high
        for item in (found.contrasts if found else ())
    )


def judged(drawn: Trials, blocks: int, *, raced: bool) -> Iterator[tuple[str, bool]]:
    """Yield, question by question, whether the analyses of one run err."""
    plan, measured = _plan(blocks), _measured(drawn.logs)
    analysis = estimate(plan, measured, metrics=())
    truth = {arm.environment: drawn.truth if arm.environment == "ab" else 0.0 for arm in _ARMS}
    missed, false = _wrong(analysis, truth)
    yield "difference: any false verdict", false
    yield "difference: any interval misses", missed
    choice = choose(analysis, measured, [arm for arm in _ARMS if arm.reference and not arm.is_control], {})
    best = _ARMS[_MARKED].name
    yield "best set: lacks the best", choice is not None and (best in choice.best_set) != (drawn.truth > 0)
    if np.isfinite(drawn.logs).all():
        yield "attribution: any interval misses", _contrasts_wrong(measured, drawn.truth)
        if raced:
            race = next_arms(replace(plan, race=True), measured)
            yield "race: the best is lost", best in {item.arm for item in race.stopped}
        yield "slow rate: interval misses", _rate_misses(analysis, 0.05)


def _rate_misses(analysis: Analysis, share: float) -> bool:
    slow = analysis.slow[_MARKED]
    low, high = SlowTrials(int(slow.sum()), slow.size, 0.0).share
    return not low <= share <= high


def table(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return each question's rate of error under each noise model, of a tenth of ``runs`` (races: of a fortieth).

    Its noise models are its own, so that it is made once, for the first machine.
    """
    figures: list[Figure] = []
    if machine != next(iter(NOISES)):
        return figures
    for (model, draw), seed in zip(MODELS.items(), chance.integers(2**32, size=len(MODELS)), strict=True):
        own = np.random.default_rng(seed)
        for blocks in (10, 20, 40):
            hits: dict[str, list[bool]] = {}
            for run in range(max(20, runs // 10)):
                for question, err in judged(draw(blocks, own), blocks, raced=run % 4 == 0):
                    hits.setdefault(question, []).append(bool(err))
            for question, found in hits.items():
                if _asked(question, model):
                    figures.append(rate(question, model, f"{blocks} blocks", np.array(found, dtype=np.bool_)))
    return figures


def _asked(question: str, model: str) -> bool:
    """Return whether a question is put to a model: a rate of slow trials where there is one, no selected runs."""
    if question.startswith("slow rate"):
        return model == "rare slow"
    return model != "failures" or question.startswith(("difference", "best set"))


def lines(figures: list[Figure]) -> list[str]:
    """Return the table: a row a question and number of blocks, a column a noise model; * where 5 % is surely missed."""
    rows: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in figures:
        rows.setdefault((figure.question, figure.procedure), {})[figure.machine] = figure
    heads = list(MODELS)
    text = [f"| question | | {' | '.join(heads)} |", f"|---|---|{'---:|' * len(heads)}"]
    for (question, blocks), found in sorted(rows.items(), key=lambda item: item[0][0]):
        shown = [_cell(found.get(model)) for model in heads]
        text.append(f"| {question} | {blocks} | {' | '.join(shown)} |")
    return text


def _cell(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:.1%}{'*' if (figure.low or 0.0) > 0.05 else ''}"
