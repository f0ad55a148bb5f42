"""A/A tests of the method: how often it calls two identical environments different, as text and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from envmatrix.results import RunFolder
from envmatrix.stats.array_types import Bools, Floats
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.effects import CONFIDENCE, LEVEL
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.pairing import log_ratios, summarise_pairs

#: The noise of simulated trials, in log units.
_NOISE = 0.03


@dataclass(frozen=True)
class FalseAlarms:
    """The number of ``comparisons`` and of false ``alarms``, with their rate and its exact 95 % interval."""

    comparisons: int
    alarms: int
    rate: float | None
    low: float | None
    high: float | None
    nominal: float = 1.0 - CONFIDENCE

    @property
    def as_promised(self) -> bool:
        """Return whether the false-alarm rate is not significantly above the nominal rate."""
        return self.low is None or self.low <= self.nominal


def false_alarm_rate(alarms: int, comparisons: int) -> FalseAlarms:
    """Return the rate with its Clopper-Pearson interval."""
    if comparisons == 0:
        return FalseAlarms(0, 0, None, None, None)
    from scipy.stats import binomtest

    interval = binomtest(alarms, comparisons).proportion_ci(0.95, method="exact")
    return FalseAlarms(comparisons, alarms, alarms / comparisons, float(interval.low), float(interval.high))


def interval_excludes_zero(differences: Floats) -> Bools:
    """Return for each row of (m, blocks) A/A log ratios whether its own 95 % interval excludes zero."""
    statistics = summarise_pairs(differences)
    blocks = int(statistics.blocks[0])
    reach = critical_value(blocks, 1, level=LEVEL) * statistics.spread / np.sqrt(blocks)
    return np.asarray(np.abs(statistics.mean) > reach)


def autoregressive(runs: int, trials: int, size: float, memory: float, rng: np.random.Generator) -> Floats:
    """Return a stationary first-order autoregression with standard deviation ``size``."""
    from scipy.signal import lfilter  # slow import: longer than the rest of a self-test

    steps = rng.normal(0.0, size * np.sqrt(1.0 - memory**2), (runs, trials))
    values = np.empty((runs, trials))
    values[:, :1] = initial = rng.normal(0.0, size, (runs, 1))
    values[:, 1:], _ = lfilter([1.0], [1.0, -memory], steps[:, 1:], zi=memory * initial)
    return values


def drifting_pairs(comparisons: int, blocks: int, noise: float, rng: np.random.Generator) -> Floats:
    """Return (comparisons, blocks) log ratios of identical environments on a drifting machine.

    Trials run one after another, in random order within blocks. Each has its own noise (``noise``, in log units) plus a
    first-order autoregressive drift of the same size (coefficient 0.95).
    """
    drift = autoregressive(comparisons, 2 * blocks, noise, 0.95, rng)
    trials = (drift + rng.normal(0.0, noise, drift.shape)).reshape(comparisons, blocks, 2)
    order = rng.choice([-1.0, 1.0], (comparisons, blocks))
    return np.asarray(order * (trials[:, :, 0] - trials[:, :, 1]))


def simulated_false_alarms(comparisons: int, blocks: int = 10, seed: int = 1) -> FalseAlarms:
    """Simulate ``comparisons`` A/A comparisons of ``blocks`` blocks on a drifting machine."""
    rng = np.random.default_rng(seed)
    alarms = 0
    for start in range(0, comparisons, 10_000):
        count = min(10_000, comparisons - start)
        alarms += int(interval_excludes_zero(drifting_pairs(count, blocks, _NOISE, rng)).sum())
    return false_alarm_rate(alarms, comparisons)


def _control_log_ratios(analysis: Analysis, measured: Measurements) -> list[Floats]:
    """Return the log ratios, by block, of each control of a run against its baseline."""
    control_ratios = []
    for arm in analysis.plan.arms:
        if arm.is_control and arm.reference in measured.arms:
            metric = analysis.primary[arm.workload]
            control, baseline = (measured.of(name, metric.name) for name in (arm.name, arm.reference))
            ratios = log_ratios(control[None, :], baseline, metric)[0]
            control_ratios.append(ratios[np.isfinite(ratios)])
    return [ratios for ratios in control_ratios if ratios.size >= 2]


def relabelled_false_alarms(analysis: Analysis, measured: Measurements, comparisons: int, seed: int = 1) -> FalseAlarms:
    """Swap the labels of baseline and control at random within each block of real trials.

    Each of the ``comparisons`` relabellings is an A/A comparison under the machine's own noise. A run with n complete
    pairs has 2^(n-1) different ones, so the rate describes this set of pairs only. Without any pair, the rate is None.
    """
    pairs = _control_log_ratios(analysis, measured)
    if not pairs:
        return false_alarm_rate(0, 0)
    rng = np.random.default_rng(seed)
    alarms = 0
    for turn in range(comparisons):
        ratios = pairs[turn % len(pairs)]
        signs = rng.choice([-1.0, 1.0], ratios.size)
        alarms += int(interval_excludes_zero((ratios * signs)[None, :])[0])
    return false_alarm_rate(alarms, comparisons)


@dataclass(frozen=True)
class SelfTest:
    """False alarms of simulated A/A comparisons, and of relabelled real ones (None: no run was given)."""

    simulated: FalseAlarms
    relabelled: FalseAlarms | None

    @property
    def passed(self) -> bool:
        """Return whether neither rate is significantly above the promised one."""
        return self.simulated.as_promised and (self.relabelled is None or self.relabelled.as_promised)

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {"schema": 1, "passed": self.passed, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the result as sentences."""
        both = {
            "simulated A/A comparisons on a drifting machine": self.simulated,
            "A/A comparisons by relabelling the run's baseline and control": self.relabelled,
        }
        return [_sentence(what, alarms) for what, alarms in both.items() if alarms]


def _sentence(what: str, alarms: FalseAlarms) -> str:
    if alarms.rate is None or alarms.low is None or alarms.high is None:
        return f"{what}: none (there is no complete pair of baseline and control)"
    return (
        f"{alarms.comparisons:,} {what}: {alarms.rate:.2%} called different (95 % interval "
        f"{alarms.low:.2%} to {alarms.high:.2%}; nominal {alarms.nominal:.0%})"
    )


def selftest(comparisons: int, folder: RunFolder | None = None) -> SelfTest:
    """Run ``comparisons`` simulated A/A comparisons, and as many relabelled ones of a run if one is given."""
    relabelled = None
    if folder is not None:
        run = folder.load()
        measured = read_measurements(folder, run.plan)
        analysis = estimate(run.plan, measured, workloads=run.workloads, metrics=())
        relabelled = relabelled_false_alarms(analysis, measured, comparisons)
    return SelfTest(simulated_false_alarms(comparisons), relabelled)
