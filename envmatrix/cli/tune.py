"""The ``envmatrix tune`` command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.cli import arguments as shared
from envmatrix.cli import common, launching, searching
from envmatrix.cli.grammar import Parser, one_name
from envmatrix.cli.standard_input import check_unused_input
from envmatrix.engines.catalog import AUTO, ENGINES
from envmatrix.errors import InputError

if TYPE_CHECKING:
    from envmatrix.api.tuning.space import SearchRequest
    from envmatrix.search.loop import RunningSearch


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("design", nargs="?", type=one_name, metavar="DESIGN", help="a design with one workload")
    shared.add_matrix(parser)
    parser.add_argument(
        "--engine",
        type=one_name,
        metavar="NAME",
        help=f"{', '.join(ENGINES.names())} or {AUTO} (default: the design's)",
    )
    parser.add_list("--factors", "NAME", "search only these: a,b, or repeat the option")
    parser.add_argument(
        "--sampler",
        type=one_name,
        metavar="NAME",
        help="Optuna sampler that proposes configurations: tpe, nsga2, random (default: none)",
    )
    shared.add_budget(parser, "total time of all trials, such as 20m (default) or 2h")
    shared.add_atlas(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the search (default: program and time)")
    shared.add_results(parser)
    launching.add_launcher(parser)
    shared.add_display_options(parser)
    parser.accept_command("your own program (no config file needed): run it once, then search for it", instead=True)
    shared.add_program(parser)
    parser.add_argument("--show-output", action="store_true", help="print the output of each trial")
    parser.examples(
        "envmatrix tune --budget 20m -- python train.py", "envmatrix tune default --factors malloc,openmp --budget 1h"
    )


def run(arguments: argparse.Namespace) -> int:
    """Search for the best environment of a program or a design, and confirm it."""
    if arguments.command:
        return searching.run_and_show_search(_begin_program(arguments), arguments, is_set_up=True)
    shared.refuse_program_options(arguments, "tune")
    if arguments.design is None:
        raise InputError(
            "no program or design given",
            remedy="your own program: `envmatrix tune -- python train.py`; a design: `envmatrix tune default`",
        )
    from envmatrix.api.tuning import search

    tuning = search.begin_design_search(
        arguments.design,
        _make_search_request(arguments),
        arguments.engine,
        arguments.matrix,
        common.print_progress,
        arguments.launcher,
        launching.read_launcher_options(arguments),
    )
    return searching.run_and_show_search(tuning, arguments)


def _begin_program(arguments: argparse.Namespace) -> RunningSearch:
    from envmatrix.api.tuning import search

    shared.refuse_design_options(
        {f"DESIGN ({arguments.design})": arguments.design, "--matrix": arguments.matrix},
        "write that matrix with `envmatrix bench --save -- PROGRAM`, edit it, then tune it",
    )
    request = shared.read_program(arguments, [arguments.engine] if arguments.engine else ())
    show = common.print_progress if arguments.show_output else lambda _: None
    with check_unused_input(request.words):
        return search.begin_program_search(request, _make_search_request(arguments), common.print_progress, show)


def _make_search_request(arguments: argparse.Namespace) -> SearchRequest:
    from envmatrix.api.known_order import read_order_atlas
    from envmatrix.api.tuning.space import SearchRequest

    return SearchRequest(
        arguments.budget,
        arguments.factors,
        arguments.name,
        Path(arguments.results),
        arguments.sampler or "",
        read_order_atlas(arguments.atlas, common.print_progress),
    )
