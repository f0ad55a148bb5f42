"""summary.json: the effects of a run in JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from envmatrix.matrix.model import Workload
from envmatrix.report.group import Group, Row
from envmatrix.report.report_data import Summary
from envmatrix.report.tables.columns import effect_values
from envmatrix.report.warning import RunWarning
from envmatrix.stats.attribution.explanation import to_json
from envmatrix.stats.nodes import NodeReport
from envmatrix.stats.steady_state.startup import Start
from envmatrix.stats.trial_text_counts import ArmFacts
from envmatrix.system.printable import printable_text

SCHEMA = 1
#: Key of an arm's slow trials -> the attribute that it shows.
_SLOW = {"count": "count", "trials": "trials", "slower": "slower", "share": "share_interval"}
#: Evidence with the versions of a run, for ``envmatrix history``.
_VERSIONS = (
    "torch.version", "openmp.library", "openmp.version", "malloc.version", "blas.library", "system.kernel",
    "system.python",
)  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _row_to_json(row: Row, group: Group, facts: ArmFacts, workload: Workload | None) -> dict[str, object]:
    effect, evidence = row.effect, facts.evidence
    turns_of = "steps" if workload is None or workload.tells_steps else "time"
    versions = {name: ", ".join(sorted(evidence[name])) for name in _VERSIONS if evidence.get(name)}
    return {
        "workload": group.workload,
        "engine": group.engine,
        "environment": row.arm.environment,
        "metric": group.metric.name,
        "label": group.metric.label,
        "unit": group.metric.unit,
        "better": group.metric.better,
        "mean": _finite(row.value),
        "median": _finite(row.median),
        "peak_rss_bytes": _finite(row.memory),
        "cv": _finite(row.cv),
        "slow_trials": {key: getattr(row.slow, name) for key, name in _SLOW.items()} if row.slow else None,
        **{name: _finite(getattr(effect, name, None)) for name in ("ratio", "low", "high")},
        "steady": asdict(row.steady) if row.steady else None,
        "flags": list(effect.flags) if effect else [],
        "withheld": (effect.withheld or None) if effect else None,
        "outcomes": dict(row.outcomes),
        "levels": dict(row.levels),
        "versions": versions,
        "skipped": row.skipped or None,
        **({"cost": asdict(row.cost)} if row.cost else {}),
        **({"in_turns": facts.in_turns, "turns_of": turns_of} if facts.in_turns else {}),
    }


def _best_to_json(group: Group) -> dict[str, object]:
    best = group.best
    name = best.arm.environment if best else None
    return {
        "workload": group.workload,
        "engine": group.engine,
        "environment": name,
        "best_set": list(group.best_set),
        "may_be_behind": _finite(group.choice.ahead[1]) if group.choice and group.choice.ahead else None,
        "equal_work_checked": not group.unchecked,
        "gain": _finite(group.choice.gain) if group.choice else None,
        "steady": asdict(best.steady) if best and best.steady else None,
        "headline": group.headline,
    }


def _warning_to_json(item: RunWarning) -> dict[str, object]:
    subject, text = printable_text(item.subject), printable_text(item.text)
    return {"kind": item.kind.value, "subject": subject, "text": text, "remedy": item.remedy}


def _nodes_to_json(item: NodeReport) -> dict[str, object]:
    names = {"workload": item.workload, "engine": item.engine, "spread": item.spread}
    nodes = [asdict(row) for row in item.rows]
    return {**names, "nodes": nodes, "interactions": dict(item.interactions), "mixed_blocks": list(item.mixed)}


def _start_to_json(item: Start) -> dict[str, object]:
    return {
        **{name: getattr(item.arm, name) for name in ("workload", "engine", "environment")},
        "steps": item.steps,
        "first_steps_s": item.first_s,
        "ready_s": item.ready_s,
        "steady": asdict(item.steady) if item.steady else None,
        "change": item.change,
        "curve": [list(point) for point in item.curve],
        "no_look": item.failed or None,
    }


def summary_to_json(summary: Summary) -> dict[str, object]:
    """Return the document of summary.json; unknown numbers are null."""
    effects, history = list(effect_values(summary)), summary.run.history
    controls = [(effect, values) for effect, values in effects if effect.is_control]
    changes = [change.model_dump(exclude_none=True, exclude={"schema_number"}) for change in history]
    return {
        "schema": SCHEMA,
        "run": summary.run.name,
        "created": summary.run.created,
        "host": printable_text(summary.run.host.name),
        "design": summary.plan.design,
        **({"changes": changes} if changes else {}),
        **({"schedule": summary.schedule} if summary.schedule else {}),
        **({"turn": summary.run.design.turn} if summary.took_turns else {}),
        "looks": {"blocks": list(summary.analysis.looks), "level": summary.analysis.level},
        "best": [_best_to_json(group) for group in summary.groups],
        "arms": [
            _row_to_json(row, group, summary.measured.facts[row.arm.name], summary.run.workloads.get(group.workload))
            for group in summary.groups
            for row in group.all_rows
        ],
        "outcomes": dict(summary.outcomes),
        "data": {"names": dict(summary.data), "stand_in": list(summary.stand_in)},
        "why": [to_json(row.why) for group in summary.groups for row in group.all_rows if row.why],
        "attribution": [asdict(item) for item in summary.attributions],
        "stopped_early": [asdict(item) for item in summary.race.stopped] if summary.race else [],
        "starts": [_start_to_json(item) for item in summary.starts],
        "nodes": [_nodes_to_json(item) for item in summary.nodes],
        "cumulative": {name: [asdict(step) for step in steps] for name, steps in summary.cumulative.items()},
        "warnings": [_warning_to_json(item) for item in summary.cautions],
        "effects": [values for effect, values in effects if not effect.is_control],
        "control": next((values for effect, values in controls if effect.primary), {}),
        "controls": [values for _, values in controls],
    }


def to_summary_json(summary: Summary) -> str:
    """Return summary.json."""
    return json.dumps(summary_to_json(summary), indent=1, allow_nan=False) + "\n"
