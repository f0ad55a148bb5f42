"""A report with one line per effect, in every run's folder."""

from __future__ import annotations

from envmatrix.report.catalog import Report
from envmatrix.report.report_data import Summary


class ToyReport(Report):
    name = "toy"
    file = "report.toy.txt"

    def render(self, summary: Summary, environment: str) -> str:
        arms = [arm.environment for arm in summary.plan.arms]
        return f"toy report of {summary.run.name} for {environment}: {' '.join(arms)}\n"
