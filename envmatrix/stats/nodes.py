"""Differences between the nodes of a run.

Effects are paired within blocks, and a block runs on one node, so node differences cancel in every effect. They are
reported as the cost of comparing across nodes. GPUs of one kind differed by 8 % on average (Sinha et al., SC 2022).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.plan import Arm, Plan
from envmatrix.stats.array_types import Floats
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.standard_errors import block_gaps
from envmatrix.stats.inference.welch import Mean, quotient
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import Family, families, log_ratios, logs_of, ratio_from_log, summarise_pairs

_SIGNIFICANCE = 0.05
#: The note below every table of nodes.
NODES_NOTE = "The baseline and an environment of a block ran on the same node, so this cancels out in every effect."


@dataclass(frozen=True)
class NodeRow:
    """One node. ``relative`` is its baseline's geometric mean over the mean of all nodes; above 1 is better."""

    node: str
    blocks: int
    relative: float


@dataclass(frozen=True)
class NodeReport:
    """The nodes of one baseline, best first.

    ``spread`` is best over worst minus 1. It is not tested: the blocks of a node follow one another, so a slow hour
    looks like a slow node. ``interactions`` maps an environment to the adjusted p (Holm) that its *effect* differs
    between nodes. ``mixed`` are blocks that ran on several nodes.
    """

    workload: str
    engine: str
    rows: tuple[NodeRow, ...]
    spread: float
    interactions: Mapping[str, float]
    mixed: tuple[int, ...] = ()

    def line(self) -> str:
        """Return the report in one or two sentences."""
        best, worst = self.rows[0], self.rows[-1]
        text = (
            f"{len(self.rows)} nodes differ by {self.spread:.1%} in the baseline of "
            f"{self.workload}@{self.engine}: {best.node} was fastest, {worst.node} slowest. A temporary "
            "slow-down of a node looks the same as a slow node. "
        )
        unlike = [name for name, p in self.interactions.items() if p < _SIGNIFICANCE]
        if unlike:
            return text + f"The effect of {', '.join(unlike)} differs between nodes."
        return text + ("No effect differs significantly between nodes." if self.interactions else "")


@dataclass(frozen=True)
class NodeGain:
    """The mean ratio of an environment over its reference in the complete blocks of one node."""

    node: str
    blocks: int
    ratio: float


def mixed_blocks(measured: Measurements) -> tuple[int, ...]:
    """Return the blocks whose trials ran on several nodes, so that node differences do not cancel."""
    return tuple(sorted(block for block, names in measured.block_nodes.items() if len(names) > 1))


def compare_nodes(plan: Plan, measured: Measurements, metrics: Mapping[str, Metric]) -> tuple[NodeReport, ...]:
    """Compare the nodes for every baseline; return () if fewer than two nodes ran blocks.

    ``metrics`` is workload -> primary metric (``Analysis.primary``). A mixed block counts for no node.
    """
    if len(measured.nodes) < 2:
        return ()
    reports = []
    for baseline in (arm for arm in plan.arms if any(other.reference == arm.name for other in plan.arms)):
        metric = metrics[baseline.workload]
        logs = metric.sign * logs_of(measured.of(baseline.name, metric.name))
        groups = _values_by_node(logs, measured)
        if len(groups) >= 2:
            interactions = _interaction_p_values(plan, measured, baseline, metric)
            reports.append(_report(baseline, groups, interactions, mixed_blocks(measured)))
    return tuple(reports)


def gains_by_node(plan: Plan, measured: Measurements, arm: Arm, metric: Metric) -> tuple[NodeGain, ...]:
    """Return the gain of ``arm`` on each node, best first; return () if fewer than two nodes ran its blocks."""
    family = next(family for family in families(plan) if arm in family.arms)
    groups = _values_by_node(_ratios(measured, family, arm, metric), measured)
    gains = [NodeGain(name, on.values.size, ratio_from_log(float(on.values.mean()))) for name, on in groups.items()]
    return tuple(sorted(gains, key=lambda gain: -gain.ratio)) if len(gains) > 1 else ()


def _ratios(measured: Measurements, family: Family, arm: Arm, metric: Metric) -> Floats:
    copies = np.stack([measured.of(name, metric.name) for name in family.copies])
    return np.asarray(log_ratios(measured.of(arm.name, metric.name)[None, :], copies, metric)[0])


@dataclass(frozen=True)
class OnNode:
    """The values of one node's blocks, and when each block began (s; NaN: unknown)."""

    values: Floats
    begins: Floats

    @property
    def mean(self) -> Mean:
        """The mean of the values, with an error that allows for slow phases of the node (``standard_errors``)."""
        summary = summarise_pairs(self.values[None], block_gaps(self.begins))
        return Mean(float(summary.mean[0]), float(summary.error[0]), int(summary.units[0]))


def _values_by_node(values: Floats, measured: Measurements) -> dict[str, OnNode]:
    """Return node -> its finite values by block, without blocks that ran on several nodes."""
    nodes = [measured.block_nodes.get(int(block), ()) for block in measured.blocks]
    names = dict.fromkeys(names[0] for names in nodes if len(names) == 1)
    present, begins = np.isfinite(values), measured.begins
    rows = {name: present & np.array([on == (name,) for on in nodes]) for name in names}
    return {name: OnNode(values[blocks], begins[blocks]) for name, blocks in rows.items() if blocks.any()}


def _report(
    baseline: Arm, groups: Mapping[str, OnNode], interactions: Mapping[str, float], mixed: tuple[int, ...]
) -> NodeReport:
    means = {name: float(logs.values.mean()) for name, logs in groups.items()}
    mean_of_nodes = sum(means.values()) / len(means)
    rows = sorted(
        (NodeRow(name, groups[name].values.size, ratio_from_log(mean - mean_of_nodes)) for name, mean in means.items()),
        key=lambda row: -row.relative,
    )
    spread = rows[0].relative / rows[-1].relative - 1
    return NodeReport(baseline.workload, baseline.engine, tuple(rows), spread, interactions, mixed)


def anova_p_value(groups: Sequence[OnNode]) -> float | None:
    """Return the p for no difference between nodes, or None if one has fewer than two values or none varies.

    It is the smallest p of Welch's t over all pairs of nodes, times their number (Bonferroni): noise differs by node.
    """
    if len(groups) < 2 or any(own.values.size < 2 for own in groups):
        return None
    means = [own.mean for own in groups]
    if not any(mean.error > 0 for mean in means):
        return None
    pairs = list(itertools.combinations(means, 2))
    return min(quotient(one, other, len(pairs), LEVEL).p for one, other in pairs)


def _interaction_p_values(plan: Plan, measured: Measurements, baseline: Arm, metric: Metric) -> dict[str, float]:
    p_values = {
        arm.environment: anova_p_value(list(_values_by_node(_ratios(measured, family, arm, metric), measured).values()))
        for family in families(plan)
        for arm in family.arms
        if family.reference == baseline.name and not arm.is_control
    }
    return holm({name: p for name, p in p_values.items() if p is not None})


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for multiple tests (Holm 1979); scipy adjusts only for false discoveries."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = largest
    return adjusted
