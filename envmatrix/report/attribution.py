"""Attribution in reports: the gain of each factor or step, as waterfall figures and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from envmatrix.plan import Arm
from envmatrix.report.figures import svg
from envmatrix.report.formatting import NONE, format_bounds, format_ratio
from envmatrix.report.tables.table_model import PlainTable, TableSection
from envmatrix.results import Run
from envmatrix.stats.attribution.contrasts import Estimate
from envmatrix.stats.attribution.main_effects import (
    Attribution,
    Contrast,
    CumulativeStep,
    attribute_gain,
    cumulative_steps,
    find_cells,
    gains_over_reference,
    signed_logs,
)
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import name_with_copy_as_original, rescale_uninterrupted_arms
from envmatrix.system.printable import printable_text

_WIDTH, _ROW, _LEFT, _RIGHT = 860.0, 30.0, 330.0, 215.0
FACTORIAL_NOTE = (
    "Main effect: averaged over the other factors. Share: the part of the heading's gain that comes from this factor "
    "(its Shapley value); all shares multiplied give the gain. All intervals are simultaneous."
)
MAIN_NOTE = "Main effect: averaged over the other factors. The intervals of all rows are simultaneous."
CUMULATIVE_NOTE = (
    "Each step is compared with the one before; all steps multiplied give the gain. Intervals are simultaneous."
)


def _arms_by_group(run: Run) -> Iterator[tuple[str, str, list[Arm]]]:
    """Yield each workload and engine with its arms."""
    for workload, engine in dict.fromkeys((arm.workload, arm.engine) for arm in run.plan.arms):
        yield workload, engine, [arm for arm in run.plan.arms if (arm.workload, arm.engine) == (workload, engine)]


def _effects_by_environment(arms: Sequence[Arm], reference: Arm, analysis: Analysis) -> dict[str, Effect]:
    """Return the effects against ``reference``, by environment."""
    compared_arms = [
        arm
        for arm in arms
        if name_with_copy_as_original(arm.reference, analysis.plan) == reference.name and not arm.is_control
    ]
    effects = (analysis.find(arm.name) for arm in compared_arms)
    return {effect.environment: effect for effect in effects if effect}


def attributions(
    run: Run, measured: Measurements, analysis: Analysis, recommended: Collection[str]
) -> tuple[Attribution, ...]:
    """Return the attribution of each workload and engine with a full factorial of at least two factors.

    ``recommended`` has the arms that the headlines recommend; their gain is divided among the factors.
    """
    levels = {name: environment.levels for name, environment in run.environments.items()}
    measured, _ = rescale_uninterrupted_arms(run.plan, measured, analysis.primary, analysis.slow)
    group_attributions = []
    for workload, engine, arms in _arms_by_group(run):
        cells = find_cells(arms, levels, measured, analysis.primary[workload])
        if cells and len(cells.factors) > 1:
            table = _effects_by_environment(arms, arms[0], analysis)
            recommended_name = next((arm.environment for arm in arms if arm.name in recommended), "")
            needed = run.plan.min_blocks
            group_attributions.append(
                attribute_gain(cells, workload, engine, table, needed, recommended_name, analysis.level)
            )
    return tuple(item for item in group_attributions if item)


def cumulative(run: Run, measured: Measurements, analysis: Analysis) -> Mapping[str, tuple[CumulativeStep, ...]]:
    """Return 'workload on engine' -> the gain that each step adds, for a cumulative design."""
    step_names = run.design.cumulative
    measured, _ = rescale_uninterrupted_arms(run.plan, measured, analysis.primary, analysis.slow)
    steps_by_group: dict[str, tuple[CumulativeStep, ...]] = {}
    for workload, engine, arms in _arms_by_group(run):
        arm_names = {arm.environment: arm.name for arm in arms}
        base = next((arm for arm in arms if arm.reference is None), arms[0])
        names = tuple(dict.fromkeys((base.environment, *step_names)))
        if not step_names or not all(name in arm_names for name in names):
            continue
        controls = [arm.name for arm in arms if arm.is_control and arm.reference == base.name]
        gains = gains_over_reference(
            *signed_logs([arm_names[name] for name in names], controls, measured, analysis.primary[workload])
        )
        table, needed = _effects_by_environment(arms, base, analysis), run.plan.min_blocks
        steps = cumulative_steps(names, gains, table, needed, 1 + len(controls), analysis.level)
        if steps:
            steps_by_group[f"{workload} on {engine}"] = steps
    return steps_by_group


def attribution_title(item: Attribution) -> str:
    """Return the heading of an attribution; the baseline has no gain to divide."""
    where = f"{item.workload} on {item.engine}"
    if item.shares and not _is_gain_proved(item):
        return f"What might bring a gain of {item.best}: {where}"
    return f"What brings the gain of {item.best}: {where}" if item.shares else f"What each factor brings: {where}"


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate with its interval."""
    if estimate.low is None:
        return format_ratio(estimate.ratio)
    return f"{format_ratio(estimate.ratio)} ({format_bounds(estimate.low, estimate.high)})"


def _interaction_sentences(contrasts: Sequence[Contrast]) -> list[str]:
    """Return a sentence for each significant interaction, or one that none is significant."""
    estimates = {item.name: item.estimate for item in contrasts if len(item.levels) == 2}
    bounds = {name: (estimate.low, estimate.high) for name, estimate in estimates.items()}
    tested = [name for name, (low, high) in bounds.items() if low is not None and high is not None]
    significant = [name for name in tested if not (estimates[name].low or 0) <= 1.0 <= (estimates[name].high or 0)]
    if tested and not significant:
        return ["No interaction found: no two factors gain significantly more, or less, together than each alone."]
    return [f"{name}: {format_estimate(estimates[name])} times the product of the two" for name in significant]


def _is_gain_proved(item: Attribution) -> bool:
    return item.total.low is not None and item.total.low > 1


def unproved_gain_note(item: Attribution) -> tuple[str, ...]:
    """Return a note if the gain that is divided among the factors is not significant."""
    if _is_gain_proved(item) or not item.shares:
        return ()
    return (f"{item.best} is not shown to gain anything: its shares are a guess.",)


def _format_share(value: float) -> str:
    text = f"{value:.0%}"
    return "0%" if text == "-0%" else text


def _factorial_section(item: Attribution) -> TableSection:
    shares = {(share.factor, share.level): share for share in item.shares}
    proved = _is_gain_proved(item)
    rows = []
    for contrast in item.contrasts:
        if len(contrast.levels) == 1:
            share = shares.get(contrast.levels[0])
            gain = format_estimate(share.gain) if share else NONE
            part = _format_share(share.part) if share and share.part is not None and proved else NONE
            rows.append((contrast.name, format_estimate(contrast.estimate), gain, part))
    if item.shares:
        rows.append(("all of it", NONE, format_estimate(item.total), "100%" if proved else NONE))
    table = PlainTable(("change", "main effect", "share of the gain", "part"), tuple(rows))
    note = FACTORIAL_NOTE if item.shares else MAIN_NOTE
    notes = (*unproved_gain_note(item), *_interaction_sentences(item.contrasts), note)
    return TableSection(attribution_title(item), table, notes)


def _cumulative_section(name: str, steps: Sequence[CumulativeStep]) -> TableSection:
    rows = tuple((step.environment, format_estimate(step.added), format_estimate(step.so_far)) for step in steps)
    return TableSection(cumulative_title(name), PlainTable(("step", "adds", "so far"), rows), (CUMULATIVE_NOTE,))


def cumulative_title(name: str) -> str:
    """Return the heading of a cumulative design's steps."""
    return f"What each step adds: {name}"


def attribution_sections(
    items: Sequence[Attribution], steps_by_group: Mapping[str, Sequence[CumulativeStep]]
) -> list[TableSection]:
    """Return the attribution tables of the terminal and Markdown reports."""
    factorial = map(_factorial_section, items)
    return [*factorial, *(_cumulative_section(name, steps) for name, steps in steps_by_group.items())]


def waterfalls(
    items: Sequence[Attribution], steps_by_group: Mapping[str, Sequence[CumulativeStep]]
) -> Iterator[tuple[str, str, Attribution | None]]:
    """Yield (title, waterfall, attribution) of each factorial and each cumulative design, '' if no gain is divided."""
    for number, item in enumerate(items):
        title = attribution_title(item)
        shares = [(f"{share.factor}: {share.level}", share.gain) for share in item.shares]
        total = (f"all: {item.best}", item.total)
        yield title, waterfall([*shares, total], title, f"w{number}") if shares else "", item
    for number, (name, steps) in enumerate(steps_by_group.items()):
        title, added = cumulative_title(name), [(step.environment, step.added) for step in steps]
        yield title, waterfall([*added, ("all", steps[-1].so_far)], title, f"l{number}"), None


def waterfall(rows: list[tuple[str, Estimate]], title: str, name: str) -> str:
    """Draw a waterfall: each share starts at the end of the one before; the last row is their product."""
    levels = [1.0]
    for _, estimate in rows[:-1]:
        levels.append(levels[-1] * estimate.ratio)
    low, high = min([*levels, 0.98]), max([*levels, 1.02])
    bottom = 14 + _ROW * len(rows)
    scale = svg.Scale(low * 0.99, high * 1.01, _LEFT, _WIDTH - _RIGHT, log=True)
    body = svg.x_grid(scale, svg.log_ticks(scale.low, scale.high), 8, bottom, base=1.0)
    for index, (label, estimate) in enumerate(rows):
        is_total = index == len(rows) - 1
        start = 1.0 if is_total else levels[index]
        body += _bar(label, estimate, scale, start, 14 + _ROW * index, is_total=is_total)
    description = "; ".join(f"{label} {format_ratio(estimate.ratio)}" for label, estimate in rows)
    return svg.drawing(_WIDTH, bottom + 26, title, printable_text(description), body, name)


def _bar(label: str, estimate: Estimate, scale: svg.Scale, start: float, y: float, *, is_total: bool) -> str:
    left, right = sorted((scale(start), scale(start * estimate.ratio)))
    kind = "same" if is_total else "faster" if estimate.ratio >= 1 else "slower"
    reach = f"  ({format_bounds(estimate.low, estimate.high)})" if estimate.low is not None else ""
    return (
        f'<g class="{kind}">{svg.rectangle(left, y, max(1.0, right - left), _ROW - 10)}</g>'
        + svg.text(_LEFT - 12, y + 14, label, "end bold" if is_total else "end", 34)
        + svg.text(_WIDTH - _RIGHT + 14, y + 14, f"{format_ratio(estimate.ratio)}{reach}")
    )
