"""Write the reports of a results folder."""

from __future__ import annotations

from envmatrix.report.catalog import render_report, report_files
from envmatrix.report.report_data import Summary, summarise
from envmatrix.results import RunFolder, write_whole
from envmatrix.stats.measurements import Measurements
from envmatrix.system.plugins import ExtensionError
from envmatrix.system.progress import ProgressCallback, silent


def write_reports(
    folder: RunFolder,
    summary: Summary | None = None,
    progress: ProgressCallback = silent,
    price_per_h: float | None = None,
    measured: Measurements | None = None,
) -> Summary:
    """Write the reports of every run, each completely or not at all, and return the Summary, with costs at a price.

    ``measured``: its trials, if they were just read. A failing report of another package goes to ``progress``; the
    others are still written. Raises StoreError if the folder cannot be read or written.
    """
    summary = summary or summarise(folder, measured)
    summary = summary if price_per_h is None else summary.at_price(price_per_h)
    for file, report in report_files(progress).items():
        try:
            text = render_report(report, summary, summary.plan.arms[0].environment)
        except ExtensionError as error:
            progress(str(error))
        else:
            write_whole(folder.path / file, text)
    return summary
