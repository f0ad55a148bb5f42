"""Attribution in reports: which groups have one, and its waterfall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envmatrix.report.svg import Scale, drawing, line, log_ticks, text
from envmatrix.report.text import clean, ratio
from envmatrix.stats.attribution import Attribution, Estimate, Step, attribute, find_cells, ladder_steps
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of
from envmatrix.stats.samples import Samples
from envmatrix.store import Run

_WIDTH, _ROW, _LEFT, _RIGHT = 860.0, 30.0, 290.0, 190.0


def attributions(run: Run, samples: Samples, primary: Mapping[str, Metric]) -> tuple[Attribution, ...]:
    """Return the attribution of every workload and engine whose arms are a full factorial of two factors or more."""
    levels: dict[str, Mapping[str, str]] = {
        name: entry["levels"] for name, entry in run.environments.items() if isinstance(entry.get("levels"), dict)
    }
    found = []
    for workload, engine in dict.fromkeys((arm.workload, arm.engine) for arm in run.plan.arms):
        arms = [arm for arm in run.plan.arms if (arm.workload, arm.engine) == (workload, engine)]
        cells = find_cells(arms, levels, samples, primary[workload])
        made = attribute(cells, workload, engine) if cells and len(cells.factors) > 1 else None
        found += [made] if made else []
    return tuple(found)


def ladders(run: Run, samples: Samples, primary: Mapping[str, Metric]) -> Mapping[str, tuple[Step, ...]]:
    """Return 'workload on engine' -> what each step adds, for a design with a ladder."""
    rungs = tuple(run.design.get("ladder") or ())
    found: dict[str, tuple[Step, ...]] = {}
    for workload, engine in dict.fromkeys((arm.workload, arm.engine) for arm in run.plan.arms):
        arms: dict[str, Any] = {
            arm.environment: arm for arm in run.plan.arms if (arm.workload, arm.engine) == (workload, engine)
        }
        base = next((name for name, arm in arms.items() if arm.reference is None), next(iter(arms)))
        names = tuple(dict.fromkeys((base, *rungs)))
        if not rungs or not all(name in arms for name in names):
            continue
        metric = primary[workload]
        rows = [samples.arms.index(arms[name].name) for name in names]
        steps = ladder_steps(names, metric.sign * logs_of(samples.table[metric.name][rows]))
        if steps:
            found[f"{workload} on {engine}"] = steps
    return found


def bars_of(attribution: Attribution) -> list[tuple[str, Estimate]]:
    """Return the rows of a waterfall: each factor's share, then the whole gain."""
    shares = [(f"{share.factor}: {share.level}", share.gain) for share in attribution.shares]
    return [*shares, (f"all: {attribution.best}", attribution.total)]


def steps_of(steps: tuple[Step, ...]) -> list[tuple[str, Estimate]]:
    """Return the rows of a ladder's waterfall."""
    return [*((step.environment, step.added) for step in steps), ("all", steps[-1].so_far)]


def waterfall(rows: list[tuple[str, Estimate]], title: str, name: str) -> str:
    """Draw shares one after the other, each beginning where the one before ended; the last row is their product."""
    levels = [1.0]
    for _, estimate in rows[:-1]:
        levels.append(levels[-1] * estimate.ratio)
    low, high = min([*levels, 0.98]), max([*levels, 1.02])
    bottom = 14 + _ROW * len(rows)
    scale = Scale(low * 0.99, high * 1.01, _LEFT, _WIDTH - _RIGHT, log=True)
    body = ""
    for value in log_ticks(scale.low, scale.high):
        body += line(scale(value), 8, scale(value), bottom, "one" if value == 1.0 else "grid")
        body += text(scale(value), bottom + 16, f"{value:.3g}", "mid soft")
    for index, (label, estimate) in enumerate(rows):
        whole = index == len(rows) - 1
        start = 1.0 if whole else levels[index]
        body += _bar(label, estimate, scale, start, 14 + _ROW * index, whole=whole)
    described = "; ".join(f"{label} {ratio(estimate.ratio)}" for label, estimate in rows)
    return drawing(_WIDTH, bottom + 26, title, clean(described), body, name)


def _bar(label: str, estimate: Estimate, scale: Scale, start: float, y: float, *, whole: bool) -> str:
    left, right = sorted((scale(start), scale(start * estimate.ratio)))
    kind = "same" if whole else "faster" if estimate.ratio >= 1 else "slower"
    bounds = f"  ({ratio(estimate.low)} to {ratio(estimate.high)})" if estimate.low is not None else ""
    return (
        f'<g class="{kind}"><rect x="{left:.1f}" y="{y:.1f}" width="{max(1.0, right - left):.1f}" '
        f'height="{_ROW - 10:.1f}" class="mark"/></g>'
        + text(_LEFT - 12, y + 14, label, "end bold" if whole else "end", 34)
        + text(_WIDTH - _RIGHT + 14, y + 14, f"{ratio(estimate.ratio)}{bounds}")
    )
