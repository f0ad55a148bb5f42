"""Arguments and options that several commands share, with the same meaning in each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.cli.grammar import (
    Parser,
    duration,
    hourly_price,
    nonempty_path,
    nonempty_text,
    one_name,
    percentage,
    whole_number,
)
from envmatrix.engines.catalog import AUTO, DEFAULT, ENGINES, choose_engine
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT as DEFAULT_LAUNCHER

if TYPE_CHECKING:
    from envmatrix.api.program.request import ProgramRequest
    from envmatrix.api.program.single_trial import SingleTrial
    from envmatrix.matrix.environment_files import EnvironmentFile
    from envmatrix.results.run import LauncherOptions
    from envmatrix.system.host import Host
    from envmatrix.trials.environment_shell import Session
    from envmatrix.trials.new_run import NewRun
    from envmatrix.trials.overrides import Overrides

#: Options for a program, as named in the namespace.
_PROGRAM_OPTIONS = (
    "setup", "prepare", "cleanup", "warmup", "parameter_list", "requirements", "metric_regex", "metric_json",
    "metric_steps", "save", "pass_env", "like", "image",
)  # fmt: skip


def add_matrix(parser: Parser) -> None:
    """Add --matrix."""
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="the matrix (default: ./matrix.yaml)")


def add_json(parser: Parser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def add_results(parser: Parser) -> None:
    """Add --results."""
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: ./results")


def add_price(parser: Parser) -> None:
    """Add --price."""
    text = "what the machines cost, such as 1.20/h: adds cost, and energy if readable"
    parser.add_argument("--price", type=hourly_price, metavar="PRICE/h", help=text)


def add_output(parser: Parser, metavar: str, text: str, default: Path | None = None) -> None:
    """Add --output, formerly ``--out`` in some commands."""
    parser.add_argument("--output", type=Path, default=default, metavar=metavar, help=text)
    parser.declare_renamed("--out", f"--output {metavar}")


def add_run(parser: Parser) -> None:
    """Add the argument RUN."""
    parser.add_argument("run_name", nargs="?", type=one_name, metavar="RUN", help="the run (default: the newest)")


def add_environment(parser: Parser) -> None:
    """Add the argument ENV."""
    parser.add_argument("environment", type=one_name, metavar="ENV", help="a named environment")


def add_engine(parser: Parser, *, of_run: bool = False) -> None:
    """Add --engine for commands with one engine; ``of_run``: the default is the engine of the run, if any."""
    engine_names = f"{', '.join(ENGINES.names())} or {AUTO}"
    text = f"the engine: {engine_names} (default: {'the one of the run, else ' if of_run else ''}{DEFAULT})"
    parser.add_argument("--engine", type=one_name, default=None if of_run else DEFAULT, metavar="NAME", help=text)


def add_chosen(parser: Parser) -> None:
    """Add the argument ENV and options for its source: a matrix or a run."""
    add_environment(parser)
    parser.add_argument(
        "--matrix", type=Path, metavar="FILE", help="the matrix (default: ./matrix.yaml, or the newest run's matrix)"
    )
    parser.add_argument(
        "--run", dest="of_run", type=one_name, metavar="RUN", help="take the environment from this run or search"
    )
    add_results(parser)
    add_engine(parser, of_run=True)


def add_process_place(parser: Parser) -> None:
    """Add --image, --launcher and the launchers' options, for commands that start one process."""
    from envmatrix.cli.launching import add_launcher

    add_image(parser)
    add_launcher(parser)


def open_chosen_environment(options: argparse.Namespace, host: Host | None = None) -> Session:
    """Prepare the environment that the options of ``add_chosen`` name, for ``host`` (None: this machine)."""
    from dataclasses import replace

    from envmatrix.api.chosen import open_environment
    from envmatrix.cli.common import print_progress
    from envmatrix.cli.launching import read_process_place

    gpus = read_process_place(options).gpus if "launcher" in options else ()
    session = open_environment(
        options.environment,
        engine=options.engine,
        matrix=options.matrix,
        run=options.of_run,
        results=options.results,
        image=getattr(options, "image", None) or "",
        host=host,
        progress=print_progress,
    )
    return replace(session, gpus=gpus)


def run_elsewhere(options: argparse.Namespace, limit_s: float, *, in_own_folder: bool = False) -> SingleTrial | None:
    """Run the command in the chosen environment as a trial of --launcher; None if that is this machine."""
    from envmatrix.api.program.single_trial import find_node, run_single_trial
    from envmatrix.cli.common import print_progress
    from envmatrix.cli.launching import read_process_place

    place, command = read_process_place(options), tuple(options.command)
    if not place.is_elsewhere:
        return None
    options.engine = choose_engine(print_progress) if options.engine == AUTO else options.engine
    host = find_node(options.engine or DEFAULT, place, limit_s, print_progress)
    session = open_chosen_environment(options, host)
    return run_single_trial(
        session, command, place, host, limit_s, options.results, print_progress, in_own_folder=in_own_folder
    )


def add_design(parser: Parser) -> None:
    """Add the argument DESIGN and the options that override it."""
    parser.add_argument(
        "design", nargs="?", type=one_name, default="default", metavar="DESIGN", help="the design (default: default)"
    )
    parser.declare_renamed("--design", "the design as a separate word: DESIGN")
    add_matrix(parser)
    parser.add_list(
        "--engine", "NAME", f"the engines: {', '.join(ENGINES.names())} or {AUTO} (default: the design's)", spaced=False
    )
    parser.add_list("--environments", "ENV", "only these and the baseline: a,b, or repeat the option")
    parser.add_list("--workloads", "NAME", "only these: a,b, or repeat the option")
    parser.add_argument("--seed", type=whole_number(0), metavar="N", help="seed of the random order")
    add_budget(parser, "stop after this time, such as 90s, 10m or 2h")
    add_target(parser, "stop when every interval is this narrow, such as 2%%")
    parser.add_argument("--min-blocks", type=whole_number(2), metavar="N", help="no verdict before this many blocks")
    parser.add_argument("--max-blocks", type=whole_number(1), metavar="N", help="stop after this many blocks")


def add_budget(parser: Parser, text: str) -> None:
    """Add --budget."""
    parser.add_argument("--budget", type=duration, metavar="TIME", help=text)


def add_atlas(parser: argparse._ActionsContainer) -> None:
    """Add --atlas."""
    text = "try what was faster in this atlas first, what was slower last (default: ./atlas, if it exists)"
    parser.add_argument("--atlas", type=nonempty_path, metavar="FOLDER", help=text)


def add_target(parser: Parser, text: str) -> None:
    """Add --target."""
    parser.add_argument("--target", type=percentage, metavar="PERCENT", help=text)


def read_overrides(options: argparse.Namespace) -> Overrides:
    """Return the overrides from the options of ``add_design``."""
    from dataclasses import fields

    from envmatrix.trials.overrides import Overrides

    return Overrides(**{field.name: getattr(options, field.name) for field in fields(Overrides)})


def read_new_run(options: argparse.Namespace, launcher_options: LauncherOptions | None = None) -> NewRun:
    """Return how the command that was typed starts and stores a new run."""
    import sys

    from envmatrix.cli.common import print_progress
    from envmatrix.trials.new_run import NewRun

    return NewRun(
        options.results,
        getattr(options, "name", None),
        getattr(options, "launcher", DEFAULT_LAUNCHER),
        launcher_options or {},
        tuple(sys.argv[1:]),
        getattr(options, "host_names", False),
        print_progress,
    )


def add_display_options(parser: Parser) -> None:
    """Add the options for progress and output."""
    add_json(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_program(parser: Parser) -> argparse._ArgumentGroup:
    """Add the options for a user's own program, similar to those of hyperfine."""
    group = parser.add_argument_group("with -- PROGRAM")
    group.add_argument("-s", "--setup", metavar="LINE", help="shell line to run once, before the first run")
    group.add_argument("-p", "--prepare", metavar="LINE", help="shell line to run before each run, inside its trial")
    group.add_argument("-c", "--cleanup", metavar="LINE", help="shell line to run once, at the end")
    group.add_argument(
        "-w", "--warmup", type=whole_number(0), metavar="N", help="runs before the first block (default: 1)"
    )
    parser.add_list("--pass-env", "NAME", "variables of this shell to pass on: a,b", target=group, spaced=False)
    like = "variables, modules and Python of a .env, environment.yml, pyproject.toml, Dockerfile or batch script"
    group.add_argument("--like", type=Path, metavar="FILE", help=like)
    add_image(group)
    regex = "the speed: a number in ( ) in the output"
    json = "the speed: a number (a.b.0.c) in a JSON file it writes"
    group.add_argument("--metric-regex", type=nonempty_text, metavar="PATTERN", help=regex)
    steps = "the speed: each matching line of the output ends a step"
    group.add_argument("--metric-steps", type=nonempty_text, metavar="PATTERN", help=steps)
    group.add_argument("--metric-json", type=nonempty_text, metavar="FILE:KEY", help=json)
    return group


def add_image(parser: argparse._ActionsContainer) -> None:
    """Add --image."""
    text = "with --engine docker or apptainer: the image it runs in, a tag, a digest, or a .tar or .sif file"
    parser.add_argument("--image", type=nonempty_text, metavar="REF", help=text)


def _read_like(options: argparse.Namespace) -> EnvironmentFile | None:
    """Return what the file of --like sets, and print what of it is not used."""
    from envmatrix.cli.common import print_progress
    from envmatrix.matrix.environment_files import read_environment_file

    if options.like is None:
        return None
    found = read_environment_file(options.like)
    parts = [*(f"{name}={value}" for name, value in found.variables.items()), *(f"module {m}" for m in found.modules)]
    parts += [found.interpreter] if found.interpreter else []
    print_progress(f"from {options.like}, in every environment: {', '.join(parts) or 'nothing'}")
    for note in found.notes:
        print_progress(f"note: {note}")
    return found


def read_program(options: argparse.Namespace, engines: Sequence[str]) -> ProgramRequest:
    """Return the program and the options of ``add_program``. Raises InputError for more than one metric."""
    from envmatrix.api.program.request import ProgramRequest
    from envmatrix.cli.launching import read_place

    metric_options = [name for name in ("metric_regex", "metric_steps", "metric_json") if getattr(options, name)]
    if len(metric_options) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in metric_options)
        raise InputError(
            f"{names} cannot be combined",
            remedy="use one of them; for several metrics, edit the matrix that `bench --save` writes",
        )
    return ProgramRequest(
        tuple(options.command),
        _shell_command(options.setup),
        _shell_command(options.prepare),
        _shell_command(options.cleanup),
        1 if options.warmup is None else options.warmup,
        options.metric_regex or "",
        options.metric_json or "",
        options.metric_steps or "",
        pass_env=tuple(options.pass_env or ()),
        like=_read_like(options),
        place=read_place(options, engines),
    )


def refuse_program_options(options: argparse.Namespace, command: str, *more: str) -> None:
    """Raise an InputError for an option that only a program can have; ``more`` are those of one command."""
    given = next((name for name in (*_PROGRAM_OPTIONS, *more) if getattr(options, name, None) is not None), None)
    if given:
        message = f"--{given.replace('_', '-')} needs a program"
        raise InputError(message, remedy=f"envmatrix {command} -- python train.py")


def refuse_design_options(conflicting: Mapping[str, object], remedy: str) -> None:
    """Raise an InputError for a part of a design (name -> its value) that was given with a program."""
    conflict = next((name for name, value in conflicting.items() if value), None)
    if conflict:
        message = f"{conflict} cannot be combined with a program: it has a matrix of its own"
        raise InputError(message, remedy=remedy)


def _shell_command(line: str | None) -> tuple[str, ...]:
    """Return the command that runs a shell line in /bin/sh, as hyperfine does."""
    return ("/bin/sh", "-c", line) if line else ()
