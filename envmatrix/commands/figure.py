"""``envmatrix figure``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("kind", choices=("forest", "time"), help="speed-ups with intervals, or every trial over time")
    parser.add_argument("run_name", nargs="?", metavar="RUN", help="the run (default: the newest)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: standard output)")
    parser.add_argument("--group", type=int, default=0, metavar="N", help="which workload@engine, counted from 0")
    common.add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Draw one figure of a run."""
    from envmatrix.report import summarise
    from envmatrix.report.exports import figure_svg
    from envmatrix.store import write_whole

    svg = figure_svg(summarise(common.find_run(arguments.results, arguments.run_name)), arguments.kind, arguments.group)
    if arguments.out:
        write_whole(arguments.out, svg)
    else:
        common.print_text(svg)
    return 0
