"""What an environment costs: money at a price per hour, and energy, for a million samples or for one run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from envmatrix.matrix.model import Workload
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import COUNTED, Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.system import shared_bench_modules as bench
from envmatrix.system.bench_options import node_count

#: Counters of energy -> what they count.
_COUNTERS: Mapping[str, str] = {"energy_j": "CPUs", "gpu_energy_j": "GPUs"}
_MILLION = 1e6
_MILLION_SAMPLES, _RUN = "million samples", "run"
#: What rates count that is no sample: nothing known, or work inside one.
_NO_SAMPLES = ("", "flop", "byte")


@dataclass(frozen=True)
class Cost:
    """The cost of one environment, for ``per``: a 'million samples' or a 'run'. None: not known.

    ``money`` has the unit of ``price_per_h``. ``low`` and ``high`` are the interval of the speed-up, applied to it; the
    speed-up of another metric has none. ``energy_j`` is in joules, for ``energy_per``, summed over ``energy_of``.
    """

    price_per_h: float
    per: str
    money: float | None
    low: float | None
    high: float | None
    energy_per: str
    energy_j: float | None
    energy_of: tuple[str, ...]


class CostReader:
    """Computes the costs of compared ``arms``, all with the counters of energy that any of them could read."""

    def __init__(self, measured: Measurements, price_per_h: float, arms: Collection[str]) -> None:
        self.measured, self.price_per_h = measured, price_per_h
        self.counters = [name for name in _COUNTERS if any(measured.geometric_mean(arm, name) for arm in arms)]

    def cost(self, arm: str, effect: Effect | None, metric: Metric, workload: Workload | None) -> Cost:
        """Return the cost of an arm, of which ``metric`` is the primary metric and ``effect`` its effect in it."""
        per, seconds, of_effect = self._seconds(arm, metric, workload)
        money = None if seconds is None else self.price_per_h * seconds / 3600
        low = high = None
        if money and of_effect and effect and effect.ratio and effect.low and effect.high:
            low, high = money * effect.ratio / effect.high, money * effect.ratio / effect.low
        energy_per, energy_j = self._energy(arm, workload)
        energy_of = tuple(_COUNTERS[name] for name in self.counters) if energy_j else ()
        return Cost(self.price_per_h, per, money, low, high, energy_per, energy_j, energy_of)

    def _seconds(self, arm: str, metric: Metric, workload: Workload | None) -> tuple[str, float | None, bool]:
        """Return what is paid for, its seconds, and whether these follow from the primary metric."""
        unit = bench.number_parser.unit_of(metric.unit) if metric.better == "higher" else None
        of_samples = unit and unit.kind == "rate" and unit.per not in _NO_SAMPLES and not unit.by_device
        if unit and of_samples and unit.text == metric.unit:
            rate = self.measured.geometric_mean(arm, metric.name)
            noun = unit.per if "/" in unit.text else f"{unit.per.rstrip('s')}s"  # fps: frames
            return f"million {noun}", _MILLION / (rate * unit.scale) if rate else None, True
        is_wall = workload is not None and bool(workload.command) and next(iter(workload.sources.values())).wall
        return _RUN, self.measured.geometric_mean(arm, metric.name if is_wall else COUNTED), is_wall

    def _energy(self, arm: str, workload: Workload | None) -> tuple[str, float | None]:
        """Return what the energy is for, and the mean of the joules over trials, None if they are not known."""
        samples = self.measured.of(arm, "samples")
        per, amount = (_MILLION_SAMPLES, samples / _MILLION) if np.isfinite(samples).any() else (_RUN, 1.0)
        if not self.counters or (workload and node_count(workload.options) > 1):  # each node counts only its own
            return per, None
        with np.errstate(divide="ignore", invalid="ignore"):
            joules = np.sum([self.measured.of(arm, name) for name in self.counters], axis=0) / amount
        known = joules[np.isfinite(joules) & (joules > 0)]
        return per, float(known.mean()) if known.size else None
