"""Write the reports of a results folder."""

from __future__ import annotations

from envmatrix.extensions import ExtensionError
from envmatrix.report.catalog import rendered, report_files
from envmatrix.report.summary import Summary, summarise
from envmatrix.say import Say, silent
from envmatrix.store import RunFolder, write_whole


def write_reports(folder: RunFolder, summary: Summary | None = None, say: Say = silent) -> Summary:
    """Write the reports that every run has, each whole or not at all, and return the Summary.

    One of another package that fails is said; the others are written. Raises StoreError when the folder cannot be read
    or written.
    """
    summary = summary or summarise(folder)
    for file, report in report_files(say).items():
        try:
            text = rendered(report, summary, summary.plan.arms[0].environment)
        except ExtensionError as error:
            say(str(error))
        else:
            write_whole(folder.path / file, text)
    return summary
