"""Output of ``tune``, ``resume`` and ``report`` for a search: progress, and its result."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from envmatrix.cli import common

if TYPE_CHECKING:
    from envmatrix.api.tuning.search import TuneResult
    from envmatrix.search.loop import RunningSearch


def run_and_show_search(tuning: RunningSearch, arguments: argparse.Namespace, *, is_set_up: bool = False) -> int:
    """Continue a search and print its result."""
    from envmatrix.api.tuning import search
    from envmatrix.search.progress import watch_step

    watch = partial(
        watch_step,
        quiet=arguments.quiet,
        tell=common.print_progress,
        show_output=getattr(arguments, "show_output", False),
    )
    result = search.finish_search(tuning, watch, is_set_up=is_set_up)
    if result.interrupted:
        common.print_progress(f"to continue: envmatrix resume {result.name}")
        return result.exit_code
    show_search(result, as_json=arguments.json)
    return result.exit_code


def show_search(result: TuneResult, *, as_json: bool) -> None:
    """Print the result of a search."""
    if as_json:
        common.print_json(result.to_json())
        return
    common.print_text(str(result))
    if result.lines:
        common.print_text(f"\nto use it elsewhere (recipe.sh):\n\n{result.lines}")
    common.print_text(f"report: {result.folder / 'report.html'}")
