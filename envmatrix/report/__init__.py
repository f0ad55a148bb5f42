"""From effects to what people read: terminal, Markdown, HTML and JSON, all made from one Summary."""

from envmatrix.report.json_file import summary_to_json
from envmatrix.report.summary import Summary, summarise
from envmatrix.report.terminal import present
from envmatrix.report.write import write_reports

__all__ = ["Summary", "present", "summarise", "summary_to_json", "write_reports"]
