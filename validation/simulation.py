"""The numbers in docs/validation/simulations*.md: ``python -m validation.simulation`` (or ``nox -s statistics``).

The noise is simulated; the analysis is the code for real runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan, make_arms
from envmatrix.stats.attribution.contrasts import Estimate
from envmatrix.stats.attribution.main_effects import Cells, attribute_gain
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import critical_value, moderated_errors
from envmatrix.stats.pairing import Views, families
from envmatrix.stats.stopping.precision import CONFIRMATIONS
from envmatrix.stats.stopping.racing import FamilyData, confidence_levels_of_all_arms, race_family, surely_near_best
from validation.noise import NOISES
from validation.simulated import SIZE, Figure, absolute_t, over_two_copies, rate, trials_of
from validation.simulated_choice import choices, simplicity
from validation.simulated_history import histories
from validation.simulated_limits import limits
from validation.simulated_looks import looks
from validation.simulated_models import MODELS
from validation.simulated_nodes import nodes
from validation.simulated_pairs import pairs
from validation.simulated_phases import phases
from validation.simulated_runs import gates
from validation.simulated_sides import sides
from validation.simulated_slow import slow_processes
from validation.simulated_steady import steady_states
from validation.simulated_table import DAYS, PARTS, lines, table
from validation.simulated_tuning import FIRST, on_nodes, searches

Floats = NDArray[np.float64]
#: Speed-ups in the race: measured for allocators and OpenMP runtimes on two cores.
SPEEDS = (1.28, 1.26, 1.26, 1.25, 1.08, 0.96, 0.92, 0.91, 0.88, 1.00, 1.01)


def a_then_b(machine: str, trials: int, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Run all of A, then all of the identical B; apply the usual tests, Welch's t and Mann-Whitney's U."""
    from scipy import stats

    noise = NOISES[machine](runs, 2 * trials, SIZE, chance)
    first, second = noise[:, :trials], noise[:, trials:]
    t = np.asarray(stats.ttest_ind(first, second, axis=1, equal_var=False).pvalue)
    u = np.asarray(stats.mannwhitneyu(first, second, axis=1).pvalue)
    name = f"A, then B, {trials} trials each"
    return [
        rate("false alarms, one A/A", machine, f"{name}: t test", t < 0.05),
        rate("false alarms, one A/A", machine, f"{name}: rank test", u < 0.05),
    ]


def family_t(logs: Floats) -> Floats:
    """Return |t| of (runs, arms, blocks) trials against the mean of the first two arms: (runs, arms - 2)."""
    return absolute_t(over_two_copies(logs))


def any_alarm(machine: str, environments: int, blocks: int, runs: int, chance: np.random.Generator) -> Figure:
    """Return how often randomised blocks call any of several identical environments different."""
    t = family_t(trials_of(machine, environments + 2, blocks, runs, chance))
    alarms = np.asarray((t > critical_value(blocks, environments, 2, level=LEVEL)).any(axis=1), dtype=np.bool_)
    question = "false alarms, one A/A" if environments == 1 else f"any false alarm, {environments} A/A"
    return rate(question, machine, f"randomised blocks, {blocks} blocks", alarms)


def power(machine: str, gain: float, blocks: int, runs: int, chance: np.random.Generator, scale: float = 1.0) -> Figure:
    """Return how often a true ``gain`` of one environment is found; ``scale`` multiplies the noise."""
    logs = trials_of(machine, 3, blocks, runs, chance) * scale
    logs[:, 2] += np.log1p(gain)
    found = family_t(logs)[:, 0] > critical_value(blocks, 1, 2, level=LEVEL)
    noise = "" if scale == 1.0 else f", noise of {SIZE * scale:.1%}"
    return rate(f"a true {gain:.0%} found", machine, f"randomised blocks, {blocks} blocks{noise}", found)


def stopped_on_precision(machine: str, target: float, runs: int, chance: np.random.Generator) -> Figure:
    """Return how often an A/A is called different if the run ends once its interval is narrow enough."""
    least, most = 6, 40
    logs = trials_of(machine, 3, most, runs, chance)
    difference = logs[:, 2] - logs[:, :2].mean(axis=1)
    open_runs, alarms = np.ones(runs, dtype=np.bool_), np.zeros(runs, dtype=np.bool_)
    narrow = np.zeros(runs)
    for blocks in range(least, most + 1):
        part = difference[:, :blocks]
        reach = critical_value(blocks, 1, 2, level=LEVEL) * part.std(axis=1, ddof=1) / np.sqrt(blocks)
        narrow = np.where(np.expm1(reach) <= target, narrow + 1, 0)
        ends = open_runs & ((narrow >= CONFIRMATIONS) | (blocks == most))
        alarms |= ends & (np.abs(part.mean(axis=1)) > reach)
        open_runs &= ~ends
    return rate("false alarms, one A/A", machine, f"stopped when within {target:.0%}", alarms)


def _race_plan(speeds: Sequence[float], blocks: int) -> Plan:
    names = tuple(f"e{index}" for index in range(len(speeds)))
    arms = make_arms(names, ("w",), ("local",), "baseline")
    return Plan("race", arms, 1, 6, blocks, SIZE, SIZE, 1e9)


@dataclass(frozen=True)
class _Raced:
    trials: int
    best: bool
    proved: bool
    lost: bool
    wrong: bool


def _one_race(logs: Floats, plan: Plan, speeds: Sequence[float]) -> _Raced:
    """Race (arms, blocks) trials; the first two arms are baseline and control."""
    family = families(plan)[-1]
    blocks = np.arange(plan.max_blocks)
    reference = logs[:2].mean(axis=0)
    field_ = FamilyData(family, logs[2:], logs[:2], np.ones(len(speeds), dtype=np.bool_))
    over = race_family(field_, blocks, plan)
    last = over.block or plan.max_blocks
    stopped = {item.arm: item for item in over.stopped}
    levels = confidence_levels_of_all_arms(plan, over.stopped)
    used = [stopped[arm.name].block if arm.name in stopped else last for arm in family.arms]
    parts = [(row - reference)[:ran] for row, ran in zip(logs[2:], used, strict=True)]
    errors = np.array([part.std(ddof=1) / np.sqrt(len(part)) for part in parts])
    judged, own = moderated_errors(errors, np.array(used), len(speeds))
    means, wrong = [], False
    for at, (part, arm, speed) in enumerate(zip(parts, family.arms, speeds, strict=True)):
        critical = critical_value(len(part), len(speeds), 2, level=levels[arm.name], own=bool(own[at]))
        reach = critical * judged[at]
        wrong |= bool(abs(part.mean() - np.log(speed)) > reach)
        means.append(part.mean() if arm.name not in stopped else -np.inf)
    fastest = int(np.argmax(speeds))
    trials = 2 * last + sum(used)
    near = speeds[int(np.argmax(means))] >= max(speeds) * 0.97
    lost = family.arms[fastest].name in stopped
    return _Raced(trials, near, over.leader is not None, lost, wrong)


def _proved_without(machine: str, logs: Floats) -> Figure:
    """Return how often full runs prove, in one analysis, that no arm is 3 % better than the leader."""
    proved = [surely_near_best(Views((one,)), len(SPEEDS), SIZE) is not None for one in logs]
    return rate("a best within 3 % is proved", machine, f"no race, {logs.shape[2]} blocks", np.array(proved))


def race(machine: str, runs: int, chance: np.random.Generator, blocks: int = 40) -> list[Figure]:
    """Race eleven environments, and compare with running all blocks of all of them."""
    plan = _race_plan(SPEEDS, blocks)
    arms = len(SPEEDS) + 2
    logs = trials_of(machine, arms, blocks, runs, chance)
    logs[:, 2:] += np.log(SPEEDS)[None, :, None]
    raced = [_one_race(one, plan, SPEEDS) for one in logs]
    share = float(np.mean([one.trials for one in raced])) / (blocks * arms)
    full = np.argmax(logs[:, 2:].mean(axis=2), axis=1)
    near = np.array(SPEEDS)[full] >= max(SPEEDS) * 0.97
    name = f"race of {len(SPEEDS)}, at most {blocks} blocks"
    return [
        Figure("share of the trials used", machine, name, share, None, None, runs),
        rate("a best within 3 % is named", machine, name, np.array([one.best for one in raced])),
        rate("a best within 3 % is named", machine, f"no race, {blocks} blocks", near),
        rate("a best within 3 % is proved", machine, name, np.array([one.proved for one in raced])),
        *(_proved_without(machine, logs[:, 2:, :count]) for count in (blocks // 2, blocks)),
        rate("the true best stopped", machine, name, np.array([one.lost for one in raced])),
        rate("any interval misses the truth", machine, name, np.array([one.wrong for one in raced])),
    ]


def _leaves_out(estimates: Sequence[Estimate], truth: Sequence[float]) -> bool:
    """Return whether any interval excludes its true ratio."""
    return any(
        found.low is not None and found.high is not None and not found.low <= true <= found.high
        for found, true in zip(estimates, truth, strict=True)
    )


def attributed(machine: str, noisy: float, blocks: int, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Attribute runs of an all-null 2 x 2 x 2; ``noisy`` is additional noise of one level's cells."""
    levels = (("0", "1"),) * 3
    cells = tuple(itertools.product(*levels))
    logs = trials_of(machine, len(cells) + 1, blocks, runs, chance)
    marked = [index for index, cell in enumerate(cells) if cell[0] == "1"]
    logs[:, marked] += chance.normal(0.0, noisy, (runs, len(marked), blocks))
    names = tuple("".join(cell) for cell in cells)
    made = (Cells(("a", "b", "c"), levels, cells, names, one[:-1], one[-1:]) for one in logs)
    found = [item for item in (attribute_gain(one, "w", "local") for one in made) if item]
    shares = [_leaves_out([s.gain for s in item.shares], [1.0] * len(item.shares)) for item in found]
    effects = [_leaves_out([c.estimate for c in item.contrasts], [1.0] * len(item.contrasts)) for item in found]
    name = f"2 x 2 x 2, {blocks} blocks" + (f", one level's noise {np.hypot(noisy, SIZE):.0%}" if noisy else "")
    return [
        rate("any share of the best, all null", machine, name, np.array(shares)),
        rate("any main effect or interaction", machine, name, np.array(effects)),
    ]


def _attributions(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    settings = ((0.0, 6), (0.0, 10), (0.137, 10))
    return [
        figure
        for noisy, blocks in settings
        for figure in attributed(machine, noisy, blocks, max(20, runs // 10), chance)
    ]


def _comparisons(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    figures = a_then_b(machine, 10, runs, chance)
    figures += [any_alarm(machine, environments, 10, runs, chance) for environments in (1, 10)]
    figures.append(stopped_on_precision(machine, 0.02, runs, chance))
    figures += [power(machine, 0.03, blocks, runs, chance) for blocks in (10, 20)]
    figures += [power(machine, 0.03, blocks, runs, chance, scale=2.0) for blocks in (20, 80)]
    return figures + race(machine, max(20, runs // 10), chance)


Topic = Callable[[str, int, np.random.Generator], list[Figure]]
#: Add further topics at the end: each has its own random numbers, by position.
TOPICS: Mapping[str, Topic] = {
    "comparisons": _comparisons,
    "attribution": _attributions,
    "choice": choices,
    "looks": looks,
    "gates": gates,
    "history": histories,
    "table": table,
    "phases": phases,
    "steady": steady_states,
    "slow": slow_processes,
    "pairs": pairs,
    "simplicity": simplicity,
    "nodes": nodes,
    "sides": sides,
    "limits": limits,
}


def all_figures(
    runs: int, seed: int = 1, only: str | None = None, ask: str | None = None, model: str | None = None
) -> list[Figure]:
    """Simulate all results, each machine with ``runs`` runs (a tenth for slow topics).

    ``ask`` (with noise model ``model``): only this part of the table (``simulated_table.table``).
    """
    figures: list[Figure] = []
    topics: Mapping[str, Topic] = {**TOPICS, "table": partial(table, ask=ask, only=model)}
    only = "table" if ask else only
    for number, machine in enumerate(NOISES):
        for topic, (name, simulate) in enumerate(topics.items()):
            if only in (None, name):
                chance = np.random.default_rng((seed, number, topic) if topic else (seed, number))
                figures += simulate(machine, runs, chance)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(prog="python -m validation.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=5000, help="simulated runs a figure (default: 5000)")
    parser.add_argument("--seed", type=int, default=1, help="seed (default: 1)")
    parser.add_argument("--only", choices=TOPICS, help="one topic alone (default: all)")
    parser.add_argument("--ask", choices=[*PARTS, DAYS], help="of the table: this alone, of every run")
    parser.add_argument("--model", choices=MODELS, help="of what --ask asks: this noise alone")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tune", action="store_true", help="search made-up worlds instead")
    parser.add_argument("--first", type=int, default=FIRST, help=f"the first world of --tune (default: {FIRST})")
    parser.add_argument("--worlds", type=int, default=200, help="how many worlds --tune searches (default: 200)")
    parser.add_argument("--nodes", type=int, nargs="+", metavar="N", help="--tune on so many nodes, each number alone")
    chosen = parser.parse_args(arguments)
    if chosen.tune:
        about = chosen.first, chosen.worlds
        for figure in on_nodes(chosen.nodes, *about) if chosen.nodes else searches(*about):
            sys.stdout.write(f"{figure.line()}\n")
            sys.stdout.flush()
        return 0
    figures = all_figures(chosen.runs, chosen.seed, chosen.only, chosen.ask, chosen.model)
    told = lines(figures) if chosen.ask or chosen.only == "table" else [item.line() for item in figures]
    text = json.dumps([asdict(item) for item in figures], indent=1) if chosen.json else "\n".join(told)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
