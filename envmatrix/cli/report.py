"""The ``envmatrix report`` command."""

from __future__ import annotations

from pathlib import Path

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, declare_flag
from envmatrix.errors import InputError
from envmatrix.report.catalog import REPORTS


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "run")
    declare(parser, "--as", "FORM", f"write it in this format instead: {', '.join(REPORTS.names())}", dest="form")
    declare(parser, "--environment", "ENV", "for pyperf: the environment whose trials to write", default="baseline")
    declare_flag(parser, "--warnings", "print all warnings with what to do about each")
    shared_options.add(parser, "--price", "--results", "--json")
    shared_options.add_output(parser, "FILE", "output file of --as (default: standard output)")
    parser.examples("envmatrix report", "envmatrix report reference-default --as csv --output effects.csv")


def run(arguments: Arguments) -> int:
    """Rewrite the reports of a run (also tune.json and report.html of a search), and print the result."""
    from envmatrix.api import run_results
    from envmatrix.api.tuning import search

    if study := search.find_study(arguments.run, arguments.results):
        return _report_search(study, arguments)
    if arguments.form:
        if arguments.price is not None:
            raise InputError(
                "--price cannot be combined with --as", remedy="leave out --as: the run's folder has all reports"
            )
        text = console_io.call(run_results.report_as, arguments)
        console_io.write_or_print(text, arguments.output)
        return 0
    if arguments.output:
        raise InputError("--output works only with --as", remedy=f"--as html --output {arguments.output}")
    result = console_io.call(run_results.write_report, arguments, price_per_h=arguments.price)
    progress_and_result.show_result(result, as_json=arguments.json, only_warnings=arguments.warnings)
    return 0


def _report_search(study: Path, arguments: Arguments) -> int:
    from envmatrix.api.tuning import search

    if arguments.price is not None:
        raise InputError(
            f"{study.name!r} is a search: --price is for runs",
            remedy=f"its steps are runs: `envmatrix report --results {study} STEP --price {arguments.price:g}/h`",
        )
    if arguments.form or arguments.output:
        raise InputError(
            f"{study.name!r} is a search: its only formats are tune.json and report.html",
            remedy=f"its steps are runs: `envmatrix report --results {study} STEP --as {arguments.form or 'csv'}`",
        )
    progress_and_result.show_search(search.report_study(study), as_json=arguments.json)
    return 0
