"""``envmatrix history``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    common.add_results(parser)
    common.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read every run's summary and print each series with its change points."""
    from envmatrix.report.history_table import print_history
    from envmatrix.stats.history import read_history

    history = read_history(arguments.results)
    if arguments.json:
        common.print_json(history.to_json())
    else:
        print_history(history, common.console())
    return 0
