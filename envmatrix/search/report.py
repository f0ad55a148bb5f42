"""Output of a search: lines for a terminal, JSON, and an HTML page with history, effects and confirmation."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from envmatrix.report.explanation import line_of, reasons_of
from envmatrix.report.figures import svg
from envmatrix.report.formats.html_file import page_environment, page_values
from envmatrix.report.formatting import format_bounds, format_count, format_ratio
from envmatrix.results import Run
from envmatrix.search.answer import TuneAnswer
from envmatrix.search.next_trials import REFERENCES, Search
from envmatrix.search.study_folder import Study
from envmatrix.stats.attribution.explanation import to_json as why_json
from envmatrix.system.printable import printable_line

if TYPE_CHECKING:
    from envmatrix.search.step_results import Step

_PHASES = ("evidence", "screen", "race", "confirm")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 860.0, 306.0, 60.0, 14.0, 34.0, 28.0


def answer_lines(answer: TuneAnswer) -> list[str]:
    """Return the answer as lines of text."""
    why = [f"why: {line_of(answer.why)}", *(f"     {text}" for text in reasons_of(answer.why))] if answer.why else []
    lines = [answer.headline, *filter(None, [answer.gain_by_node]), *why, *answer.cautions]
    if answer.contributions:
        note = "the model's estimate and its uncertainty; not confirmed, not a 95 % interval"
        lines += ["", f"effect of each of its settings ({note}):"]
        lines += [
            f"  {contribution.factor + '=' + contribution.level:34} {format_ratio(contribution.ratio)} "
            f"({format_bounds(contribution.low, contribution.high)})"
            for contribution in answer.contributions
        ]
    if answer.dropped:
        lines += ["", "dropped:"]
        lines += [f"  {name:34} {printable_line(why)}" for name, why in answer.dropped.items()]
    phases = ", ".join(f"{name} {trials}" for name, trials in answer.phases.items())
    lines += [
        "",
        f"{_tried_text(answer)} (trials: {phases})",
    ]
    return lines


def _tried_text(answer: TuneAnswer) -> str:
    """Return how much of the space was tried, and in what time, as text."""
    return f"{answer.seen:,} of {format_count(answer.cells - 1, 'configuration')} tried in {answer.spent_s:.0f} s"


def to_json(name: str, answer: TuneAnswer, lines: str) -> dict[str, object]:
    """Return the answer as a JSON document; ratios above 1 are faster."""
    effect = answer.effect
    return {
        "schema": 1,
        "study": name,
        "headline": answer.headline,
        "interrupted": answer.interrupted,
        "recommended": dict(answer.settings) if answer.settings else None,
        "tried": dict(answer.tried),
        "ratio": effect.ratio if effect else None,
        "gain": answer.gain,
        "low": effect.low if effect else None,
        "high": effect.high if effect else None,
        "steady": asdict(answer.steady) if answer.steady else None,
        "blocks": effect.blocks if effect else 0,
        "flags": list(effect.flags) if effect else [],
        "equal_work_checked": not answer.unchecked,
        "cautions": list(answer.cautions),
        "nodes": [asdict(entry) for entry in answer.nodes],
        "why": why_json(answer.why) if answer.why else None,
        "contributions": [asdict(entry) for entry in answer.contributions],
        "dropped": dict(answer.dropped),
        "trials": dict(answer.phases),
        "configurations": answer.cells - 1,
        "seen": answer.seen,
        "spent_s": answer.spent_s,
        "export": lines,
    }


def subject_text(study: Study, run: Run) -> str:
    """Describe the program, place and start of a search; ``run`` is its first step."""
    workload = run.workloads[study.design.workloads[0]]
    program_text = shlex.join(workload.command) if workload.command else f"workload {workload.name}"
    place = study.place.launcher if study.place and study.place.host else ""  # no host: it ran on this machine
    cpus = f"{format_count(len(run.host.cpus), 'CPU')} ({run.host.cpu_model})" if run.host.cpu_model else ""
    location = ", ".join(
        filter(None, [f"engine {study.design.engines[0]}", f"launcher {place}" if place else "", cpus])
    )
    return f"Of {program_text} ({location}), started {study.created[:16].replace('T', ' ')} UTC."


def to_html(name: str, answer: TuneAnswer, search: Search, steps: Sequence[Step], lines: str, subject: str) -> str:
    """Return the HTML page of a search; ``subject`` is a sentence about what was searched."""
    from markupsafe import Markup  # the figure escapes every text inside it

    return (
        page_environment()
        .get_template("tune.html.j2")
        .render(
            **page_values(len(_PHASES)),
            name=name,
            answer=answer,
            lines=lines,
            figure=Markup(_history_figure(steps)),  # noqa: S704
            legend=[(kind, phase, Markup(svg.marker(6, 6, kind, 4.0))) for kind, phase in enumerate(_PHASES)],  # noqa: S704
            levels=_level_estimates(search, steps),
            subject=subject,
            tried=_tried_text(answer),
        )
    )


def _level_estimates(search: Search, steps: Sequence[Step]) -> list[tuple[str, float, float, float, int]]:
    """Return the model's estimate of each level with readings: name, ratio, low, high, number of readings."""
    posterior, space = search.posterior([step.batch for step in steps]), search.space
    spread = np.sqrt(np.diag(posterior.covariance))
    estimates = []
    for factor, (name, levels) in enumerate(zip(space.factors, space.levels, strict=True)):
        for level in range(1, len(levels)):
            column = int(search.terms.mains[factor]) + level - 1
            mean, reach = float(posterior.mean[column]), 1.96 * float(spread[column])
            reading_count = sum(
                int(np.isfinite(step.batch.scores[place]).sum())
                for step in steps
                for place, row in enumerate(step.batch.rows, REFERENCES)
                if space.codes[row, factor] == level
            )
            if reading_count:  # without a reading, the model has only its prior
                estimates.append(
                    (f"{name}={levels[level]}", *np.exp([mean, mean - reach, mean + reach]).tolist(), reading_count)
                )
    return estimates


def _history_figure(steps: Sequence[Step]) -> str:
    """Draw every reading relative to the mean of its block's references, in the order of the steps."""
    gains = [(step.batch.phase, gain) for step in steps for gain in step.batch.observed_gains().ravel().tolist()]
    points = [(number, phase, math.exp(gain)) for number, (phase, gain) in enumerate(gains, 1) if math.isfinite(gain)]
    if not points:
        return ""
    values = [value for *_, value in points]
    low, high = min(0.95, *values), max(1.05, *values)

    def x(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place / max(1, len(gains))

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    body = "".join(
        svg.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid")
        + svg.text(_LEFT - 8, y(tick) + 4, f"{tick:g}", "end")
        for tick in svg.ticks(low, high)
    )
    for position, phase, value in points:
        kind = _PHASES.index(phase)
        body += f'<g class="k{kind}">{svg.marker(x(position), y(value), kind, 3.0)}</g>'
    body += svg.text(4, 18, "speed relative to the baseline", "soft")
    body += svg.text(_WIDTH - _RIGHT, _HEIGHT - 6, "trials, in the order they ran", "end soft")
    description = "Speed of each trial relative to the baseline of its block, in the order they ran"
    return svg.drawing(_WIDTH, _HEIGHT, "Search history", description, body, "search")
