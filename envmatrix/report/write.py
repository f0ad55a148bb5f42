"""Write the reports of a results folder."""

from __future__ import annotations

import json

from envmatrix.report.json_file import summary_to_json
from envmatrix.report.summary import Summary, summarise
from envmatrix.store import RunFolder, write_whole


def write_reports(folder: RunFolder, summary: Summary | None = None) -> Summary:
    """Write summary.json, report.md and report.html, each whole or not at all, and return the Summary.

    Raises StoreError when the folder cannot be read or written.
    """
    from envmatrix.report.html_file import to_html
    from envmatrix.report.markdown import to_markdown

    summary = summary or summarise(folder)
    document = json.dumps(summary_to_json(summary), indent=1, allow_nan=False) + "\n"
    write_whole(folder.path / "summary.json", document)
    write_whole(folder.path / "report.md", to_markdown(summary))
    write_whole(folder.path / "report.html", to_html(summary))
    return summary
