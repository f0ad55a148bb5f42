"""Would blocks that change during a run decide sooner? ``python -m validation.adaptive_blocks``.

Each committed run gives the noise of every environment and its effect. Simulated runs with these compare three ways to
use the same time: all environments in every block, a race that stops environments early, and second trials of noisy
environments and of the reference. A gain is the factor of time that plain blocks need for the same half-widths (their
geometric mean over environments). The race is the code for real runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np

from envmatrix.plan import Plan, make_arms
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import critical_value, moderated_errors
from envmatrix.stats.pairing import families, logs_of
from envmatrix.stats.stopping import racing
from validation.simulated import Figure, Floats, over_two_copies, rate, standard_errors
from validation.simulated_limits import NOISE

_MOST, _HORIZONS = 40, (8, 10, 15, 30, 40)
_RESULTS = ("results", "validation/results")
_FEWEST_BLOCKS, _FEWEST_ARMS = 6, 3
#: Blocks after which second trials are chosen, and the predicted gain from which they are.
_CHOSEN_AFTER, _WORTH = 6, 1.05
_MOST_COPIES = 4


@dataclass(frozen=True)
class Components:
    """A run's noise per trial, the reference first, and its shrunken effects: standard deviations and means of logs."""

    name: str
    noise: Floats
    effects: Floats


def noise_of(logs: Floats) -> Floats:
    """Return the variance of each row's trials within blocks, the first two rows (copies) together.

    From the residuals of blocks: a row's is (1 - 2 / rows) of its own variance and 1 / rows of the mean of all.
    """
    rows, blocks = logs.shape[-2:]
    residuals = logs - logs.mean(axis=-2, keepdims=True)
    squares = residuals.var(axis=-1, ddof=1) if blocks > 1 else residuals[..., 0] ** 2
    mean = squares.mean(axis=-1, keepdims=True) / (1.0 - 1.0 / rows)
    variances = np.maximum((squares - mean / rows) / (1.0 - 2.0 / rows), 0.02 * mean)
    first = variances[..., :2].mean(axis=-1, keepdims=True)
    return np.concatenate([first, variances[..., 2:]], axis=-1)


def components(name: str, logs: Floats) -> Components:
    """Return the components of a run's log numbers; effects are shrunken by what noise explains of their spread."""
    differences = logs[2:] - logs[:2].mean(axis=0)
    effects, errors = differences.mean(axis=1), differences.var(axis=1, ddof=1) / logs.shape[1]
    true = max(float(effects.var() - errors.mean()), 0.0)
    return Components(name, np.sqrt(noise_of(logs)), effects * true / (true + errors))


def committed(root: Path) -> Iterator[Components]:
    """Yield the components of the committed runs with several environments and enough blocks."""
    for folder in sorted(file.parent for top in _RESULTS for file in (root / top).rglob("run.json")):
        summary = summarise(RunFolder(folder))
        measured, primary = summary.measured, summary.analysis.primary
        for family in families(summary.plan):
            names = (*family.copies, *(arm.name for arm in family.arms))
            if family.arms[0].is_control or len(family.copies) != 2 or len(family.arms) < _FEWEST_ARMS:
                continue
            metric = primary[family.arms[0].workload]
            logs = metric.sign * logs_of(measured.table[metric.name])[[measured.arms.index(name) for name in names]]
            if logs.shape[1] >= _FEWEST_BLOCKS and np.isfinite(logs).all():
                yield components(str(folder.relative_to(root)), logs)


def _race_plan(environments: int, min_blocks: int) -> Plan:
    arms = make_arms(tuple(f"e{index}" for index in range(environments)), ("w",), ("local",), "baseline")
    return Plan("race", arms, 1, min_blocks, _MOST, 0.03, 0.03, 1e9)


def _raced(logs: Floats, plan: Plan) -> racing.FamilyRace:
    family = families(plan)[-1]
    data = racing.FamilyData(family, logs[2:], logs[:2], np.ones(len(logs) - 2, dtype=np.bool_))
    return racing.race_family(data, np.arange(_MOST), plan)


Share = Callable[[Plan, int], float]


def _equal_share(plan: Plan, _look: int) -> float:
    """Return the share of an earlier rule, whose total was 5 %, not 4 %."""
    return 1.0 / len(racing.decision_blocks(plan)) / (1.0 - racing.BEST_SET_SHARE)


#: Ways to race: the first decision, and the share of the error of each.
WAYS: Mapping[str, tuple[int, Share]] = {
    "equal shares from block 6": (6, _equal_share),
    "falling shares from block 6": (6, racing.error_share),
    "falling shares from block 4": (4, racing.error_share),
}


@cache
def _log_critical(blocks: int, environments: int, level: float, copies: int = 2) -> float:
    return math.log(critical_value(blocks, environments, copies, level=level))


def _log_reach(blocks: float, environments: int, level: float, copies: int = 2) -> float:
    """Return the log of critical value over the root of a number of blocks, interpolated between whole ones."""
    whole = int(blocks)
    ends = [_log_critical(count, environments, level, copies) for count in (whole, whole + 1)]
    return ends[0] + (blocks - whole) * (ends[1] - ends[0]) - 0.5 * math.log(blocks)


def _blocks_of_the_rest(left: Sequence[int], environments: int, time: float) -> float:
    """Return the blocks of an arm that stays to the end, if arms leave after ``left`` blocks; ``time`` is in trials."""
    blocks, active = 0.0, environments + 2
    for at in sorted(left):
        if time <= (at - blocks) * active:
            break
        time -= (at - blocks) * active
        blocks, active = float(at), active - 1
    return blocks + time / active


def race_gain(run: Components, way: str, runs: int, chance: np.random.Generator) -> Mapping[int, float]:
    """Return the gain of a race for those that stay, after as much time as each number of plain blocks takes."""
    environments = len(run.effects)
    min_blocks, share = WAYS[way]
    plan, found = _race_plan(environments, min_blocks), dict.fromkeys(_HORIZONS, 0.0)
    with mock.patch.object(racing, "error_share", share):
        level = 1.0 - (1.0 - LEVEL) * racing.FINAL_ERROR_SHARE
        for _ in range(runs):
            logs = _trials(run, chance)
            left = [item.block for item in _raced(logs, plan).stopped]
            for blocks in _HORIZONS:
                ran = _blocks_of_the_rest(left, environments, blocks * (environments + 2))
                found[blocks] += _log_reach(blocks, environments, LEVEL) - _log_reach(ran, environments, level)
    return {blocks: math.exp(2.0 * total / runs) for blocks, total in found.items()}


def _trials(run: Components, chance: np.random.Generator) -> Floats:
    noise = np.concatenate([run.noise[:1], run.noise])
    means = np.concatenate([[0.0, 0.0], run.effects])
    return np.asarray(chance.standard_normal((len(noise), _MOST)) * noise[:, None] + means[:, None])


def null_trials(noise: str, environments: int, chance: np.random.Generator, blocks: int = _MOST) -> Floats:
    """Return log speeds of environments that are all alike; 'unequal': their noise differs up to sevenfold."""
    shape = (1, environments + 2, blocks)
    if noise != "unequal":
        return NOISE[noise](shape, chance)[0]
    return np.asarray((chance.standard_normal(shape) * np.exp(chance.uniform(0.0, 2.0, (*shape[:2], 1))))[0])


NULLS = ("normal", "unequal", "skewed", "heavy tails", "one skewed")


def race_errors(way: str, noise: str, environments: int, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return how often a race of equal environments loses the first or the last one, and how often an interval misses.

    The worse of the two counts: only the last one is skewed in "one skewed".
    """
    min_blocks, share = WAYS[way]
    plan = _race_plan(environments, min_blocks)
    family = families(plan)[-1]
    lost, missed = np.zeros((runs, environments), dtype=np.bool_), np.zeros(runs, dtype=np.bool_)
    with mock.patch.object(racing, "error_share", share):
        for run in range(runs):
            logs = null_trials(noise, environments, chance)
            race = _raced(logs, plan)
            lost[run] = [arm.name in {one.arm for one in race.stopped} for arm in family.arms]
            missed[run] = _any_misses(logs, race, plan)
    worst = lost[:, 0 if lost[:, 0].mean() > lost[:, -1].mean() else -1]
    name = f"{environments} environments, {way}"
    return [rate("the best is lost", noise, name, worst), rate("any interval misses", noise, name, missed)]


def _any_misses(logs: Floats, race: racing.FamilyRace, plan: Plan) -> bool:
    """Return whether any interval at the end of a race of equal environments excludes 1."""
    environments = len(logs) - 2
    levels = racing.confidence_levels_of_all_arms(plan, race.stopped)
    blocks = {item.arm: item.block for item in race.stopped}
    arms = families(plan)[-1].arms
    used = np.array([blocks.get(arm.name, race.block or _MOST) for arm in arms])
    parts = [row[:count] for row, count in zip(over_two_copies(logs[None])[0], used, strict=True)]
    errors = np.array([part.std(ddof=1) / np.sqrt(len(part)) for part in parts])
    judged, own = moderated_errors(errors, used, environments)
    return any(
        abs(part.mean())
        > critical_value(len(part), environments, 2, level=levels[arm.name], own=bool(own[row])) * judged[row]
        for row, (part, arm) in enumerate(zip(parts, arms, strict=True))
    )


@dataclass(frozen=True)
class Choice:
    """Trials of each environment (1 or 2) and of the reference in a block."""

    trials: Floats
    copies: int

    @property
    def time(self) -> float:
        """Trials in a block."""
        return float(self.trials.sum()) + self.copies

    def log_variance(self, variances: Floats) -> Floats:
        """Return the log variance of each environment's difference in a block; the reference's variance is first."""
        return np.asarray(np.log(variances[1:] / self.trials + variances[0] / self.copies))


def choose_copies(variances: Floats, blocks: float) -> Choice:
    """Return the block that makes intervals narrowest in the time of ``blocks`` plain ones; plain if not worth it."""
    environments = len(variances) - 1
    order = np.argsort(-variances[1:])
    plain = Choice(np.ones(environments), 2)
    best, least = plain, math.inf
    for copies in range(2, _MOST_COPIES + 1):
        for doubled in range(environments + 1):
            choice = Choice(np.where(np.isin(np.arange(environments), order[:doubled]), 2.0, 1.0), copies)
            mean = _mean_log_width(choice, variances, blocks)
            least, best = min((least, best), (mean, choice), key=lambda pair: pair[0])
    worth = 2.0 * (_mean_log_width(plain, variances, blocks) - least) >= math.log(_WORTH)
    return best if worth else plain


def _mean_log_width(choice: Choice, variances: Floats, plain: float, first: float = 0.0) -> float:
    """Return the mean log half-width in the time of ``plain`` blocks, of which ``first`` were plain before."""
    environments = len(variances) - 1
    later = (plain - first) * (environments + 2) / choice.time
    blocks = max(first + later, 2.0)
    before = np.exp(Choice(np.ones(environments), 2).log_variance(variances))
    each = (first * before + later * np.exp(choice.log_variance(variances))) / blocks
    return float((_log_reach(blocks, environments, LEVEL, choice.copies) + 0.5 * np.log(each)).mean())


def copies_gain(run: Components, blocks: int, runs: int, chance: np.random.Generator) -> tuple[float, float]:
    """Return the gain of second trials chosen after a few blocks, and that of who knows the noise from the start."""
    variances = run.noise**2
    plain = Choice(np.ones(len(run.effects)), 2)
    width = _mean_log_width(plain, variances, blocks)
    found = 0.0
    for _ in range(runs):
        choice = choose_copies(noise_of(_trials(run, chance)[:, :_CHOSEN_AFTER]), blocks)
        found += width - _mean_log_width(choice, variances, blocks, _CHOSEN_AFTER)
    known = width - _mean_log_width(choose_copies(variances, blocks), variances, blocks)
    return math.exp(2.0 * found / runs), math.exp(2.0 * known)


def copies_errors(noise: str, environments: int, runs: int, chance: np.random.Generator) -> Figure:
    """Return how often any of several equal environments is called different after second trials were chosen."""
    wrong, blocks = np.zeros(runs, dtype=np.bool_), 12
    for run in range(runs):
        drawn = null_trials(noise, environments, chance, 4 * blocks).reshape(environments + 2, 4, blocks)
        choice = choose_copies(noise_of(drawn[:, 0, :_CHOSEN_AFTER]), blocks)
        counts = np.concatenate([[choice.copies - 1.0, 1.0], choice.trials]).astype(int)
        later = np.array([row[:count].mean(axis=0) for row, count in zip(drawn, counts, strict=True)])
        weights = np.array([choice.copies - 1.0, 1.0]) / choice.copies
        is_plain = np.arange(blocks) < _CHOSEN_AFTER
        reference = np.where(is_plain, drawn[:2, 0].mean(axis=0), weights @ later[:2])
        differences = (np.where(is_plain, drawn[:, 0], later)[2:] - reference)[None]
        t = np.abs(differences.mean(axis=2)) / standard_errors(differences)
        wrong[run] = bool((t > critical_value(blocks, environments, 2, level=LEVEL)).any())
    return rate("any false verdict", noise, f"{environments} environments, second trials", wrong)


def _print_gains(found: Sequence[Components], runs: int) -> None:
    print(f"gain of time over {len(found)} committed runs: mean (least to most)")
    for way in WAYS:
        gains = [race_gain(run, way, runs, np.random.default_rng((1, row))) for row, run in enumerate(found)]
        print(f"{'race, ' + way:36}", *(_gain_text(blocks, [one[blocks] for one in gains]) for blocks in _HORIZONS))
    for run in made_up():
        gains = [copies_gain(run, blocks, runs, np.random.default_rng(2))[0] for blocks in _HORIZONS]
        text = ", ".join(f"{blocks} blocks {gain:.2f}" for blocks, gain in zip(_HORIZONS, gains, strict=True))
        print(f"second trials, {run.name}: {text}", flush=True)
    for blocks in _HORIZONS:
        pairs = [copies_gain(run, blocks, runs, np.random.default_rng((2, row))) for row, run in enumerate(found)]
        for kind, gains in zip(("chosen after 6 blocks", "noise known"), zip(*pairs, strict=True), strict=True):
            print(f"{'second trials, ' + kind:36}", _gain_text(blocks, gains))


def made_up() -> Iterator[Components]:
    """Yield runs of 4 and 9 equal environments, with equal noise and with a reference that is three times noisier."""
    for environments in (4, 9):
        for name, reference in (("equal noise", 0.03), ("noisy baseline", 0.09)):
            noise = np.array([reference, *[0.03] * environments])
            yield Components(f"{environments} environments, {name}", noise, np.zeros(environments))


def _gain_text(blocks: int, gains: Sequence[float]) -> str:
    return f" {blocks} blocks {np.mean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print gains and error rates."""
    parser = argparse.ArgumentParser(prog="python -m validation.adaptive_blocks", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs of an error rate (default: 1000)")
    parser.add_argument("--gains", type=int, default=50, help="simulated runs of each committed run (default: 50)")
    options = parser.parse_args(arguments)
    if options.gains:
        _print_gains(list(committed(Path(__file__).parents[1])), options.gains)
    for environments in (4, 9):
        for noise in NULLS if options.runs else ():
            chance = np.random.default_rng((3, environments, NULLS.index(noise)))
            print(copies_errors(noise, environments, options.runs, chance).line(), flush=True)
            for way in WAYS:
                for figure in race_errors(way, noise, environments, options.runs, chance):
                    print(figure.line(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
