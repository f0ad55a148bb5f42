"""How much the nodes of a run differ.

Effects are paired within blocks, and a block stays on one node, so these differences cancel in every effect. They
are told because they show what comparing across nodes would have cost (GPUs of one kind differed by 8 % on average:
Sinha et al., SC 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Arm, Plan
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import Family, families, log_ratios, logs_of, ratio_of

Floats = NDArray[np.float64]
_LEVEL = 0.05
#: What every report says below the table of nodes.
CANCELS = "Baseline and environment of a block ran on the same node, so this cancels in every effect."


@dataclass(frozen=True)
class NodeRow:
    """One node. ``relative`` is its baseline's geometric mean over the mean of all nodes; above 1 is better."""

    node: str
    blocks: int
    relative: float


@dataclass(frozen=True)
class NodeReport:
    """The nodes of one baseline, best first.

    ``spread`` is best over worst minus 1; ``p`` tests whether the baselines differ at all (one-way analysis of
    variance of logs over blocks), None below two blocks on some node. ``interactions`` maps an environment to the
    adjusted p (Holm) that its *effect* differs between nodes; ``mixed`` are blocks that ran on several nodes.
    """

    workload: str
    engine: str
    rows: tuple[NodeRow, ...]
    spread: float
    p: float | None
    interactions: Mapping[str, float]
    mixed: tuple[int, ...] = ()

    def line(self) -> str:
        """Say it in one or two sentences."""
        best, worst = self.rows[0], self.rows[-1]
        if self.p is None:
            known = "too few blocks to tell from noise"
        elif self.p < _LEVEL:
            known = f"more than noise (p = {self.p:.2g})"
        else:
            known = f"no more than noise may (p = {self.p:.2g})"
        text = (
            f"{len(self.rows)} nodes differ by {self.spread:.1%} in the baseline of {self.workload}@{self.engine}, "
            f"{known}: {best.node} measured best, {worst.node} last. "
        )
        unlike = [name for name, p in self.interactions.items() if p < _LEVEL]
        if unlike:
            return text + f"The effect of {', '.join(unlike)} is not the same on all nodes."
        return text + ("No effect is shown to differ between nodes." if self.interactions else "")


@dataclass(frozen=True)
class NodeGain:
    """What an environment is on one node: the mean ratio over its reference in so many complete blocks there."""

    node: str
    blocks: int
    ratio: float


def mixed_blocks(measured: Measurements) -> tuple[int, ...]:
    """Return the blocks whose trials ran on several nodes: their pairs do not cancel what nodes differ by."""
    return tuple(sorted(block for block, names in measured.block_nodes.items() if len(names) > 1))


def compare_nodes(plan: Plan, measured: Measurements, metrics: Mapping[str, Metric]) -> tuple[NodeReport, ...]:
    """Compare the nodes, once for every baseline; empty when fewer than two nodes ran blocks.

    ``metrics`` is workload -> primary metric (``Analysis.primary``). A mixed block belongs to no node.
    """
    if len(measured.nodes) < 2:
        return ()
    mixed = mixed_blocks(measured)
    of_column = _nodes_of(measured)
    reports = []
    for baseline in (arm for arm in plan.arms if any(other.reference == arm.name for other in plan.arms)):
        metric = metrics[baseline.workload]
        logs = metric.sign * logs_of(measured.of(baseline.name, metric.name))
        groups = _groups(logs, of_column)
        if len(groups) >= 2:
            interactions = _interactions(plan, measured, baseline, metric, of_column)
            reports.append(_report(baseline, groups, interactions, mixed))
    return tuple(reports)


def gains_by_node(plan: Plan, measured: Measurements, arm: Arm, metric: Metric) -> tuple[NodeGain, ...]:
    """Return what ``arm`` gains on each node, best first; empty when fewer than two nodes ran its blocks."""
    family = next(family for family in families(plan) if arm in family.arms)
    groups = _groups(_ratios(measured, family, arm, metric), _nodes_of(measured))
    found = [NodeGain(node, own.size, ratio_of(float(own.mean()))) for node, own in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.ratio)) if len(found) > 1 else ()


def _nodes_of(measured: Measurements) -> list[str]:
    """Return the node of each column of the table, '' for a block that several ran."""
    known = {block: names[0] for block, names in measured.block_nodes.items() if len(names) == 1}
    return [known.get(int(block), "") for block in measured.blocks]


def _ratios(measured: Measurements, family: Family, arm: Arm, metric: Metric) -> Floats:
    copies = np.stack([measured.of(name, metric.name) for name in family.copies])
    return np.asarray(log_ratios(measured.of(arm.name, metric.name)[None, :], copies, metric)[0])


def _groups(values: Floats, nodes: Sequence[str]) -> dict[str, Floats]:
    """Return node -> its finite values, block by block."""
    names = dict.fromkeys(node for node in nodes if node)
    picked = {name: values[[node == name for node in nodes]] for name in names}
    return {name: own[np.isfinite(own)] for name, own in picked.items() if np.isfinite(own).any()}


def _report(
    baseline: Arm, groups: Mapping[str, Floats], interactions: Mapping[str, float], mixed: tuple[int, ...]
) -> NodeReport:
    means = {name: float(own.mean()) for name, own in groups.items()}
    middle = sum(means.values()) / len(means)
    rows = sorted(
        (NodeRow(name, len(groups[name]), ratio_of(mean - middle)) for name, mean in means.items()),
        key=lambda row: -row.relative,
    )
    spread = rows[0].relative / rows[-1].relative - 1
    p = difference_p(list(groups.values()))
    return NodeReport(baseline.workload, baseline.engine, tuple(rows), spread, p, interactions, mixed)


def difference_p(groups: Sequence[Floats]) -> float | None:
    """Return the p of one-way analysis of variance, None when a group has fewer than two values or none varies."""
    if len(groups) < 2 or any(len(group) < 2 for group in groups):
        return None
    if all(float(np.ptp(group)) == 0.0 for group in groups):
        return None
    from scipy.stats import f_oneway  # takes longer to import than all that a command needs besides

    return float(f_oneway(*groups).pvalue)


def _interactions(
    plan: Plan, measured: Measurements, baseline: Arm, metric: Metric, nodes: Sequence[str]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in families(plan):
        if family.reference != baseline.name or any(arm.is_control for arm in family.arms):
            continue
        for arm in family.arms:
            p = difference_p(list(_groups(_ratios(measured, family, arm, metric), nodes).values()))
            if p is not None:
                found[arm.environment] = p
    return holm(found)


def holm(given: Mapping[str, float]) -> dict[str, float]:
    """Adjust p values for being many (Holm 1979); scipy adjusts for false discoveries only."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(given.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(given) - rank)))
        adjusted[name] = largest
    return adjusted
