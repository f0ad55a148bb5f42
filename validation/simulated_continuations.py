"""Effects in the steady state on simulated processes: `python -m validation.simulated_continuations --runs 1000`.

The speed of each process follows a course over its seconds of steps. The last blocks go on, and the code for real runs
estimates the effects in the second half. `--to FOLDER` keeps the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from envmatrix.plan import Plan, make_arms
from envmatrix.plan.steady_state_block_share import share_of_blocks_to_continue
from envmatrix.results import trial_of
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.measurements import Measurements, fold_trials
from envmatrix.stats.metrics import THROUGHPUT
from envmatrix.stats.steady_state.effect import SteadyEffect, steady_effects
from envmatrix.stats.steady_state.later_speed import CHANGE, TREND, WATCHED
from validation.simulated import Figure, Floats, rate

#: Standard deviations of log speeds: of a process, of its trial, and of a stretch of a second.
PROCESS, TRIAL, STRETCH = 0.03, 0.025, 0.05
#: Seconds of steps of a trial, and the stretches after it; the second half of all begins with stretch number 3.
TRIAL_S, STRETCHES, LATE = 2.0, 8, 3
ENVIRONMENTS, CHANGING = 8, 4
_TRUTH_PROCESSES = 200_000
#: Prices in seconds: a block, and a block's processes going on.
BLOCK_S, LATER_S = 37.0, 80.0

#: Course -> log speeds (processes, 1 + STRETCHES) of an environment that changes: in the trial, and in each stretch.
Course = Callable[[int, np.random.Generator], Floats]
_MIDDLES = np.array([TRIAL_S / 2, *(TRIAL_S + 0.5 + np.arange(STRETCHES))])


def _flat(count: int, _chance: np.random.Generator) -> Floats:
    return np.zeros((count, _MIDDLES.size))


def _warm_up(count: int, _chance: np.random.Generator) -> Floats:
    return np.tile(-0.3 * np.exp(-_MIDDLES / 1.5), (count, 1))


def _throttled(count: int, chance: np.random.Generator) -> Floats:
    begins = chance.uniform(2.0, 7.0, (count, 1))
    return np.where(begins < _MIDDLES, -0.12, 0.0)


def _grows(count: int, _chance: np.random.Generator) -> Floats:
    return np.tile(-0.01 * _MIDDLES, (count, 1))


def _some_shift(count: int, chance: np.random.Generator) -> Floats:
    return np.where((chance.random((count, 1)) < 0.8) & (_MIDDLES > TRIAL_S), -0.15, 0.0)


def _noisy(count: int, chance: np.random.Generator) -> Floats:
    return np.where(_MIDDLES > TRIAL_S, chance.normal(0.0, 0.08, (count, 1)), 0.0)


COURSES: Mapping[str, Course] = {
    "all alike": _flat,
    "warm-up": _warm_up,
    "throttling after 2 to 7 s": _throttled,
    "memory growth": _grows,
    "4 of 5 processes shift": _some_shift,
    "change 3 times as noisy": _noisy,
}


def _plan() -> Plan:
    names = tuple(f"e{index}" for index in range(ENVIRONMENTS))
    arms = make_arms(("baseline", *names), ("w",), ("local",), "baseline")
    return Plan("steady", arms, 1, 6, 40, 0.03, 0.03, 1e9)


PLAN = _plan()


def _empty(blocks: int) -> Measurements:
    """Return the measurements of successful trials, whose speeds are filled in for each run."""
    trials = (
        trial_of(slot, "ok", started=1e9 + BLOCK_S * index, document={"metrics": {THROUGHPUT.name: 1.0}})
        for index in range(blocks)
        for slot in PLAN.block(index)
    )
    return fold_trials(PLAN, trials)


def _late(speeds: Floats) -> Floats:
    """Return the log of the mean speed over the steps of the stretches along the last axis."""
    return np.asarray(-np.log(np.exp(-speeds).mean(axis=-1)))


def _measured(empty: Measurements, course: Course, groups: int, chance: np.random.Generator) -> Measurements:
    arms, blocks = len(PLAN.arms), len(empty.blocks)
    speeds = chance.normal(0.0, PROCESS, (arms, blocks, 1)) + np.zeros(_MIDDLES.size)
    for index, arm in enumerate(PLAN.arms):
        if arm.environment in {f"e{number}" for number in range(CHANGING)}:
            speeds[index] += course(blocks, chance)
    speeds[:, :, 0] += chance.normal(0.0, TRIAL, (arms, blocks))
    speeds[:, :, 1:] += chance.normal(0.0, STRETCH, (arms, blocks, STRETCHES))
    later = speeds[:, :, 1 + LATE :]
    half = later.shape[2] // 2
    goes_on = np.isin(np.arange(blocks), np.arange(blocks - groups, blocks))
    columns = {
        CHANGE: _late(later) - speeds[:, :, 0],
        TREND: _late(later[:, :, half:]) - _late(later[:, :, :half]),
        WATCHED: np.full((arms, blocks), TRIAL_S + STRETCHES),
    }
    table = {name: np.where(goes_on, values, np.nan) for name, values in columns.items()}
    return replace(empty, table={**empty.table, THROUGHPUT.name: np.exp(speeds[:, :, 0]), **table})


def truth(course: Course, chance: np.random.Generator) -> float:
    """Return the true steady effect of an environment that changes over the baseline: log, mean over processes."""
    noise = chance.normal(0.0, STRETCH, (_TRUTH_PROCESSES, STRETCHES - LATE))
    changing = course(_TRUTH_PROCESSES, chance)[:, 1 + LATE :]
    return float((_late(changing + noise) - _late(noise)).mean())


def _effects(
    empty: Measurements, course: Course, groups: int, chance: np.random.Generator
) -> Mapping[str, SteadyEffect]:
    measured = _measured(empty, course, groups, chance)
    return steady_effects(PLAN, measured, estimate(PLAN, measured, metrics=()))


def figures(runs: int, blocks: int, groups: int, chance: np.random.Generator) -> Iterator[Figure]:
    """Yield, for each course, how often any interval misses, the mean bias, and the mean half-width."""
    empty = _empty(blocks)
    names = [arm for arm in PLAN.arms if arm.environment.startswith("e")]
    for name, course in COURSES.items():
        true = truth(course, chance)
        targets = {arm.name: true if int(arm.environment[1:]) < CHANGING else 0.0 for arm in names}
        missed, control, errors, widths = [], [], [], []
        for _ in range(runs):
            found = _effects(empty, course, groups, chance)
            missed.append(any(not _holds(found[arm], target) for arm, target in targets.items()))
            control.append(not _holds(found[next(arm.name for arm in PLAN.arms if arm.is_control)], 0.0))
            errors += [math.log(found[arm].ratio) - target for arm, target in targets.items() if target or not true]
            widths += [math.log(found[arm].high / found[arm].low) / 2 for arm in targets]
        where = f"{blocks} blocks, {groups} went on"
        yield rate("any steady interval misses", name, where, np.array(missed))
        yield rate("the control's misses", name, where, np.array(control))
        yield Figure("bias of the changing ones", name, where, float(np.mean(errors)), None, None, runs)
        yield Figure("half-width (log), mean", name, where, float(np.mean(widths)), None, None, runs)


def _holds(steady: SteadyEffect, target: float) -> bool:
    return math.log(steady.low) <= target <= math.log(steady.high)


def allocations(runs: int, budget_s: float, chance: np.random.Generator) -> Iterator[Figure]:
    """Yield the half-width of each allocation of a budget, and the one that the rule chooses."""
    process, trial = PROCESS**2, TRIAL**2
    late = STRETCH**2 / (STRETCHES - LATE)
    wanted = share_of_blocks_to_continue(trial + late, process - trial, LATER_S, BLOCK_S)
    course, where = COURSES["all alike"], f"budget of {budget_s / 60:.0f} minutes"
    widths: dict[int, float] = {}
    for groups in itertools.count(2):
        blocks = int((budget_s - groups * LATER_S) / BLOCK_S)
        if blocks < max(6, groups):
            break
        empty = _empty(blocks)
        found = [effect for _ in range(runs) for effect in _effects(empty, course, groups, chance).values()]
        widths[groups] = float(np.mean([math.log(one.high / one.low) / 2 for one in found]))
        name = f"{groups} of {blocks} go on"
        yield Figure("half-width (log), mean", name, where, widths[groups], None, None, runs)
    chosen = min(widths, key=lambda groups: abs(groups - wanted * (budget_s - groups * LATER_S) / BLOCK_S))
    yield Figure("half-width of the rule over the least", f"{chosen} go on", where,
                 widths[chosen] / min(widths.values()), None, None, runs)  # fmt: skip


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m validation.simulated_continuations", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs a figure (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="seed (default: 1)")
    parser.add_argument("--to", type=Path, help="folder for steady.json")
    chosen = parser.parse_args()
    chance = np.random.default_rng(chosen.seed)
    found: list[Figure] = []
    parts = [figures(chosen.runs, blocks, groups, chance) for blocks, groups in ((6, 3), (12, 8))]
    parts += [allocations(max(20, chosen.runs // 10), 60.0 * minutes, chance) for minutes in (12, 25)]
    parts.append(figures(chosen.runs, 6, 2, chance))
    for figure in itertools.chain(*parts):
        found.append(figure)
        print(figure.line(), flush=True)
    if chosen.to:
        chosen.to.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"runs": chosen.runs, "seed": chosen.seed, "figures": [asdict(one) for one in found]}, indent=1
        )
        (chosen.to / "steady.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
