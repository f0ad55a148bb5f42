"""Results of runs: effects, comparisons, reports, figures, history."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from envmatrix.api.matrix_and_run_lookup import Names, PathLike, parse_argument, split_names
from envmatrix.api.result import Result
from envmatrix.api.runs import find_run_and_record_reading
from envmatrix.durations_and_sizes import parse_tolerance
from envmatrix.errors import InputError, suggestion
from envmatrix.report.catalog import REPORTS, render_report
from envmatrix.report.formats.exports import figure_pdf, figure_svg
from envmatrix.report.write import write_reports
from envmatrix.stats.attribution.explanation import Explanation, why_not
from envmatrix.stats.attribution.step_time_parts import step_parts
from envmatrix.stats.comparisons.between_runs import compare_runs
from envmatrix.stats.comparisons.environment_pairs import compare_environments, compare_sides
from envmatrix.stats.comparisons.result import Comparison
from envmatrix.stats.effects import Effect
from envmatrix.stats.history import History, read_history
from envmatrix.stats.measurements import read_measurements
from envmatrix.system.progress import ProgressCallback, silent


def effects(
    run: PathLike | Result | None = None, *, metric: str | None = None, results: PathLike = "results"
) -> tuple[Effect, ...]:
    """Return the effect of each environment of a run against its reference.

    Args:
        run: a Result, a run's name or its folder; None: the newest run.
        metric: such as 'peak_rss_bytes'; None: the primary metric, on which verdicts are based.
        results: the folder in which runs are searched by name.

    Returns:
        One Effect for every environment that has a reference, in the order of the plan. It has a ratio (above 1 is
        better), its simultaneous 95 % interval, adjusted p and verdict.

    Raises:
        InputError: the run does not exist, or does not have the metric.
        StoreError: the run cannot be read.

    """
    analysis = Result.of(find_run_and_record_reading(run, results)).summary.analysis
    if metric is None:
        return analysis.primary_effects()
    selected = tuple(effect for effect in analysis.effects if effect.metric == metric)
    if not selected:
        metric_names = ", ".join(dict.fromkeys(effect.metric for effect in analysis.effects)) or "none"
        raise InputError(f"this run has no effects for the metric {metric!r}", remedy=f"its metrics: {metric_names}")
    return selected


def compare(
    old: PathLike | Result,
    new: PathLike | Result | None = None,
    *,
    environments: Names | None = None,
    allowed: float | str = 0.0,
    anyway: bool = False,
    results: PathLike = "results",
) -> Comparison:
    """Compare two environments of one run, or two runs, and decide whether the new one is slower.

    Args:
        old: the run, or the older one of two: a Result, a name or a folder.
        new: the newer run; None: compare two ``environments`` of one run, or its two sides.
        environments: (old, new) within one run; of two runs: only these.
        allowed: the accepted slow-down: 0.03 or '3%'.
        anyway: compare runs that are not comparable, and report the reasons as cautions.
        results: the folder in which runs are searched by name.

    Returns:
        The Comparison. For each workload and engine: the ratio of new over old (above 1 is faster), its interval, and
        whether new is slower by more than ``allowed``. ``exit_code``: 7 unequal work, 5 slower, otherwise 0.

    Raises:
        InputError: no such run or environment, or the runs are not comparable.
        StoreError: a run cannot be read.

    """
    names, limit = split_names(environments) or (), parse_argument("allowed", allowed, parse_tolerance)
    old_folder = find_run_and_record_reading(old, results)
    if new is not None:
        return compare_runs(
            old_folder, find_run_and_record_reading(new, results), environments=names, allowed=limit, anyway=anyway
        )
    old_run = old_folder.load()
    if old_run.sides and not names:
        return compare_sides(old_run, read_measurements(old_folder, old_run.plan), limit)
    if len(names) != 2:
        raise InputError(
            "comparing within one run takes two environments",
            remedy=f"envmatrix compare {old_folder.path.name} --environments OLD,NEW, or name a second run",
        )
    return compare_environments(old_run, read_measurements(old_folder, old_run.plan), *names, limit)


def explain(
    run: PathLike | Result | None = None, environment: str | None = None, *, results: PathLike = "results"
) -> tuple[list[Explanation], dict[str, str]]:
    """Return why environments of a run are faster or slower than their references, and why others are not explained.

    Args:
        run: a Result, a run's name or its folder; None: the newest run.
        environment: one environment; None: all.
        results: where runs are looked for by name.

    Returns:
        The explanations, and by environment the reason why there is none.

    Raises:
        InputError: there is no such run, or no such environment in it.
        StoreError: the run cannot be read.

    """
    summary = Result.of(find_run_and_record_reading(run, results)).summary
    rows = [row for group in summary.groups for row in group.all_rows if row.effect and not row.effect.is_control]
    known = {row.arm.environment for row in rows}
    if environment is not None and environment not in known:
        raise InputError(
            f"the run compares no environment {environment!r} with another", remedy=suggestion(environment, known)
        )
    rows = [row for row in rows if environment in (None, row.arm.environment)]
    parts = step_parts(summary.analysis, summary.measured)
    return [row.why for row in rows if row.why], {
        row.arm.shown if environment is None else row.arm.environment: why_not(row.effect, parts.get(row.arm.name))
        for row in rows
        if row.effect and not row.why
    }


def write_report(
    run: PathLike | Result | None = None,
    results: PathLike = "results",
    progress: ProgressCallback = silent,
    price_per_h: float | None = None,
) -> Result:
    """Rewrite summary.json, report.md and report.html of a run; return its Result. Raises the errors of ``effects``."""
    folder = find_run_and_record_reading(run, results)
    return Result.of(folder, summary=write_reports(folder, progress=progress, price_per_h=price_per_h))


def report_as(
    form: str, run: PathLike | Result | None = None, environment: str = "baseline", results: PathLike = "results"
) -> str | bytes:
    """Return a run's report in another format. Raises the errors of ``effects``.

    ``environment`` selects the trials for pyperf. Parquet returns bytes, and raises InputError without pyarrow.
    """
    return render_report(REPORTS.make(form), Result.of(find_run_and_record_reading(run, results)).summary, environment)


def figure(
    kind: str,
    run: PathLike | Result | None = None,
    *,
    group: int = 0,
    results: PathLike = "results",
    form: Literal["svg", "pdf"] = "svg",
) -> str | bytes:
    """Return a figure of a run as an SVG or PDF file; ``group`` counts pairs of workload and engine from 0.

    PDF returns bytes, and raises InputError without svglib. Raises the errors of ``effects``.
    """
    summary = Result.of(find_run_and_record_reading(run, results)).summary
    return figure_pdf(summary, kind, group) if form == "pdf" else figure_svg(summary, kind, group)


def history(results: PathLike = "results") -> History:
    """Return the history of a folder's runs: a series per environment over time, with its change points.

    Args:
        results: the folder of the runs; only their summary.json is read.

    Returns:
        The History: a series for each host, workload, engine and environment, oldest run first. ``unreadable`` names
        the runs without a usable summary.

    Raises:
        InputError: the folder does not exist.

    """
    folder = Path(results)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}", remedy="pass the folder that contains the runs: --results DIR")
    return read_history(folder)
