"""The ``envmatrix tune`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name
from envmatrix.cli.unused_stdin import check_unused_input
from envmatrix.durations_and_sizes import parse_duration
from envmatrix.engines.catalog import AUTO, ENGINES
from envmatrix.errors import InputError

if TYPE_CHECKING:
    from envmatrix.api.tuning.space import SearchRequest
    from envmatrix.search.loop import RunningSearch


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "design", "DESIGN", "a design with one workload", nonempty_name, nargs="?")
    shared_options.add(parser, "--matrix")
    declare(
        parser, "--engine", "NAME", f"{', '.join(ENGINES.names())} or {AUTO} (default: the design's)", nonempty_name
    )
    parser.add_list("--factors", "NAME", "search only these: a,b, or repeat the option")
    text = "Optuna sampler that proposes configurations: tpe, nsga2, random (default: none)"
    declare(parser, "--sampler", "NAME", text, nonempty_name)
    declare(parser, "--budget", "TIME", "total time of all trials, such as 20m (default) or 2h", parse_duration)
    shared_options.add(parser, "--atlas")
    declare(parser, "--name", "NAME", "name of the search (default: program and time)")
    shared_options.add(parser, "--results")
    shared_options.add_launcher(parser)
    shared_options.add(parser, "--json", "--quiet")
    parser.accept_command("your own program (no config file needed): run it once, then search for it", instead=True)
    shared_options.add_program(parser)
    shared_options.add(parser, "--show-output")
    parser.examples(
        "envmatrix tune --budget 20m -- python train.py", "envmatrix tune default --factors malloc,openmp --budget 1h"
    )


def run(arguments: Arguments) -> int:
    """Search for the best environment of a program or a design, and confirm it."""
    if arguments.command:
        return progress_and_result.run_and_show_search(_begin_program(arguments), arguments, is_set_up=True)
    shared_options.refuse_program_options(arguments, "tune")
    if arguments.design is None:
        raise InputError(
            "no program or design given",
            remedy="your own program: `envmatrix tune -- python train.py`; a design: `envmatrix tune default`",
        )
    from envmatrix.api.tuning import search

    request = _make_search_request(arguments)
    tuning = console_io.call(search.begin_design_search, arguments, request=request)
    return progress_and_result.run_and_show_search(tuning, arguments)


def _begin_program(arguments: Arguments) -> RunningSearch:
    from envmatrix.api.tuning import search

    shared_options.refuse_design_options(
        {f"DESIGN ({arguments.design})": arguments.design, "--matrix": arguments.matrix},
        "write that matrix with `envmatrix bench --save -- PROGRAM`, edit it, then tune it",
    )
    program = shared_options.read_program(arguments, [arguments.engine] if arguments.engine else ())
    show = console_io.print_progress if arguments.show_output else lambda _: None
    with check_unused_input(program.words):
        return search.begin_program_search(program, _make_search_request(arguments), show)


def _make_search_request(arguments: Arguments) -> SearchRequest:
    from envmatrix.api.atlas import read_named_or_local_atlas
    from envmatrix.api.tuning.space import SearchRequest

    atlas = read_named_or_local_atlas(arguments.atlas, console_io.print_progress)
    return console_io.call(SearchRequest, arguments, atlas=atlas)
