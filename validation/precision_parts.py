"""What the turns of a measured run say of how long a turn should be: arithmetic of `nox -s selfbench -- --precision`.

The log of a turn's mean time, arm and block effects removed, varies within a process (from turn to turn) and with the
process as a whole. More turns average the first, only more processes the second; the steps that begin a turn and the
start of a block's processes are what both cost (Kalibera & Jones 2013: repeat where the variance is, for its price).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Lengths of a turn that are held against each other.
LENGTHS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class Parts:
    """Variances of the log of a turn's mean: from turn to turn ``within`` a process, and of the ``process``."""

    within: float
    process: float


def parts(steps: Floats, length: int) -> Parts:
    """Estimate both from the times of steps (blocks x arms x turns x steps), of each turn the first ``length`` ones."""
    logs = np.log(steps[..., :length].mean(axis=-1))
    blocks, arms, turns = logs.shape
    apart = logs - logs.mean(axis=(0, 2), keepdims=True)
    apart -= apart.mean(axis=1, keepdims=True)  # what a moment did to all arms
    means = apart.mean(axis=2)
    within = ((apart - means[..., None]) ** 2).sum() / (blocks * (arms - 1) * (turns - 1))
    whole = (means**2).sum() / ((blocks - 1) * (arms - 1))
    return Parts(float(within), max(0.0, float(whole - within / turns)))


def block_s(steps: Floats, length: int, taken: int, measured_s: float, apart: int) -> float:
    """Return what a block would take with turns of ``length``, of one that took ``measured_s`` with its own.

    Each turn has ``apart`` steps more, that count in nothing.
    """
    _, arms, turns, own = steps.shape
    step_s = float(steps.mean()) / 1e9
    at_start = measured_s - arms * turns * (own + apart) * step_s
    return at_start + arms * (taken + math.ceil(taken / length) * apart) * step_s


def lines(steps: Floats, measured_s: float, apart: int) -> Iterator[str]:
    """Yield a line for each length of a turn, at the same steps a trial as were taken."""
    taken = steps.shape[2] * steps.shape[3]
    yield f"  {'steps of a turn':15} {'sd of a turn':>12} {'sd of a process':>15} {'a block':>9}  precision per minute"
    lengths = [length for length in LENGTHS if length <= steps.shape[3]]
    found = {length: (parts(steps, length), block_s(steps, length, taken, measured_s, apart)) for length in lengths}
    process = float(np.mean([variances.process for variances, _ in found.values()]))  # it is one; no length has its own
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
    """Yield how much longer the first steps of a turn take than its last two: (turns, steps) ns of each process.

    The mean over processes of each one's ratio, with the 95 % that its spread from process to process leaves.
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
    """Return the steps of the blocks in which every arm has all its turns, of one length.

    A trial is its block, its arm, the steps of each turn, and the times of all. None: fewer than two blocks are whole.
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
