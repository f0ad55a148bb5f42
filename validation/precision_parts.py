"""Best length of a turn, from the turns of a measured run: arithmetic of `nox -s selfbench -- --precision`.

The log of a turn's mean time, without arm and block effects, varies between turns of a process and between processes.
More turns reduce the first variance, only more processes the second. The cost is the first steps of each turn and the
start of a block's processes (Kalibera & Jones 2013: repeat at the level of the variance, given its cost).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Turn lengths to compare.
LENGTHS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class Parts:
    """Variances of the log of a turn's mean: between turns ``within`` a process, and between processes."""

    within: float
    process: float


def parts(steps: Floats, length: int) -> Parts:
    """Estimate both from step times (blocks x arms x turns x steps), with the first ``length`` of each turn."""
    logs = np.log(steps[..., :length].mean(axis=-1))
    blocks, arms, turns = logs.shape
    apart = logs - logs.mean(axis=(0, 2), keepdims=True)
    apart -= apart.mean(axis=1, keepdims=True)  # effect of a moment on all arms
    means = apart.mean(axis=2)
    within = ((apart - means[..., None]) ** 2).sum() / (blocks * (arms - 1) * (turns - 1))
    whole = (means**2).sum() / ((blocks - 1) * (arms - 1))
    return Parts(float(within), max(0.0, float(whole - within / turns)))


def block_s(steps: Floats, length: int, taken: int, measured_s: float, apart: int) -> float:
    """Return a block's duration with turns of ``length``, from one that took ``measured_s`` with its own turns.

    Each turn has ``apart`` further, excluded steps.
    """
    _, arms, turns, own = steps.shape
    step_s = float(steps.mean()) / 1e9
    at_start = measured_s - arms * turns * (own + apart) * step_s
    return at_start + arms * (taken + math.ceil(taken / length) * apart) * step_s


def lines(steps: Floats, measured_s: float, apart: int) -> Iterator[str]:
    """Yield a line for each turn length, for the same number of steps per trial as measured."""
    taken = steps.shape[2] * steps.shape[3]
    yield f"  {'steps of a turn':15} {'sd of a turn':>12} {'sd of a process':>15} {'a block':>9}  precision per minute"
    lengths = [length for length in LENGTHS if length <= steps.shape[3]]
    found = {length: (parts(steps, length), block_s(steps, length, taken, measured_s, apart)) for length in lengths}
    process = float(np.mean([variances.process for variances, _ in found.values()]))  # one value for all lengths
    worth = {
        length: 1 / ((process + variances.within / math.ceil(taken / length)) * seconds)
        for length, (variances, seconds) in found.items()
    }
    for length, (variances, seconds) in found.items():
        yield (
            f"  {length:15} {math.sqrt(variances.within):12.3f} {math.sqrt(process):15.3f} {seconds:7.1f} s  "
            f"{worth[length] / worth[lengths[-1]]:.2f} of turns of {lengths[-1]}"
        )


def places(processes: Sequence[Floats]) -> Iterator[str]:
    """Yield the ratio of a turn's first steps to its last two; each process has (turns, steps) in ns.

    The mean over processes, with a 95 % interval from the spread between processes.
    """
    whole = [np.log(steps[:, :3].mean(axis=0) / steps[:, -2:].mean()) for steps in processes if steps.shape[1] > 3]
    if len(whole) < 2:
        return
    logs = np.array(whole)
    reach = 1.96 * logs.std(axis=0, ddof=1) / math.sqrt(len(logs))
    ratios = ", ".join(f"{name} {math.exp(mean):.3f} ±{half:.3f}" for name, mean, half in
                       zip(("first", "second", "third"), logs.mean(axis=0), reach, strict=True))  # fmt: skip
    yield f"  steps of a turn over its last two, {len(logs)} processes: {ratios}"


def stacked(trials: Sequence[tuple[int, str, Sequence[int], Sequence[int]]]) -> Floats | None:
    """Return the steps of the blocks in which every arm has all its turns, all of one length.

    A trial is (block, arm, steps of each turn, all step times). Return None if fewer than two blocks are complete.
    """
    arms = sorted({arm for _, arm, _, _ in trials})
    shapes = {tuple(turns) for _, _, turns, _ in trials}
    whole = max(shapes, key=lambda shape: sum(tuple(turns) == shape for _, _, turns, _ in trials), default=())
    if len(set(whole)) != 1 or len(whole) < 2 or len(arms) < 2:
        return None
    timed = [one for one in trials if tuple(one[2]) == whole and len(one[3]) == sum(whole)]
    times = {(block, arm): steps for block, arm, _, steps in timed}
    blocks = [block for block in sorted({block for block, _ in times}) if all((block, arm) in times for arm in arms)]
    if len(blocks) < 2:
        return None
    shape = (len(blocks), len(arms), len(whole), whole[0])
    return np.array([[times[block, arm] for arm in arms] for block in blocks], dtype=np.float64).reshape(shape)
