"""``envmatrix history``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    common.add_results(parser)
    common.add_json(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write an HTML page instead")


def run(arguments: argparse.Namespace) -> int:
    """Read every run's summary and show each series with its change points."""
    from envmatrix.images.cache import disk_errors
    from envmatrix.report.history_page import to_html
    from envmatrix.report.history_table import print_history
    from envmatrix.stats.history import read_history

    history = read_history(arguments.results)
    if arguments.out:
        with disk_errors(arguments.out):
            arguments.out.write_text(to_html(history), encoding="utf-8")
        common.print_text(str(arguments.out))
    elif arguments.json:
        common.print_json(history.to_json())
    else:
        print_history(history, common.console())
    return 0
