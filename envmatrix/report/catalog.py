"""The catalogs of report formats and figures by name; extend them with a line here or an entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

from envmatrix.errors import EnvmatrixError, InputError, suggestion
from envmatrix.system.plugins import Catalog, ExtensionError, import_target

if TYPE_CHECKING:
    from envmatrix.report.group import Group
    from envmatrix.report.report_data import Summary
    from envmatrix.system.progress import ProgressCallback

#: Other files in a run's folder, whose names a report may not use.
_RESERVED_FILES = ("run.json", "trials.jsonl", "looks.jsonl", "history.jsonl", "reproduction.json", "images.json")


class Report(Protocol):
    """One format of a run's report. Subclasses inherit the defaults defined here."""

    @property
    def name(self) -> str:
        """The value for ``report --as``."""

    @property
    def file(self) -> str | None:
        """The file name in the folder of every run; None: written only on request."""
        return None

    def render(self, summary: Summary, environment: str) -> str | bytes:
        """Return the report's text or bytes; ``environment`` selects the trials if the format fits only one."""


@dataclass(frozen=True)
class BuiltIn(Report):
    """A format of this package: ``make`` returns its text or bytes from a Summary and an environment."""

    make: Callable[[Summary, str], str | bytes]
    name: str = ""
    file: str | None = None

    def render(self, summary: Summary, environment: str) -> str | bytes:
        """Return the report's text or bytes."""
        return self.make(summary, environment)


REPORTS: Catalog[Report] = Catalog(
    kind="report",
    group="envmatrix.reports",
    protocol="envmatrix.report.catalog:Report",
    built_in={
        name: f"envmatrix.report.formats.exports:{name.replace('-', '_')}_report"
        for name in ("json", "markdown", "html", "csv", "trials-csv", "parquet", "pyperf", "openmetrics", "junit")
    },
)

#: Figure -> the function that draws it as SVG from a Summary and one of its groups.
FIGURES: Mapping[str, str] = {
    "forest": "envmatrix.report.figures.forest:forest_figure",
    "start": "envmatrix.report.figures.timeline:start_figure",
    "time": "envmatrix.report.figures.timeline:time_figure",
}


def draw_figure(kind: str, summary: Summary, group: Group) -> str:
    """Return a figure as SVG, '' if there is nothing to draw; raise an InputError for an unknown kind."""
    if kind not in FIGURES:
        raise InputError(f"no figure {kind!r}", remedy=suggestion(kind, FIGURES))
    return str(import_target(FIGURES[kind])(summary, group))


def render_report(report: Report, summary: Summary, environment: str) -> str | bytes:
    """Return a report's text or bytes; raise an ExtensionError if another package's report fails."""
    try:
        return report.render(summary, environment)
    except EnvmatrixError:
        raise
    except Exception as error:
        if report.name in REPORTS.built_in:
            raise
        raise REPORTS.failed(report.name, error) from error


def report_files(progress: ProgressCallback) -> dict[str, Report]:
    """Return file name -> report for the reports in every run's folder; unusable ones go to ``progress``."""
    files: dict[str, Report] = {}
    for entry, report in REPORTS.make_all():
        if isinstance(report, ExtensionError):
            progress(str(report))
        elif report.file is not None and PurePath(report.file).name == report.file not in (*files, *_RESERVED_FILES):
            files[report.file] = report
        elif report.file is not None:
            progress(f"report {entry.name} of {entry.origin} is not written: {report.file!r} is no free file name")
    return files
