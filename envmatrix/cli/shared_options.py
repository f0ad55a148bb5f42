"""Arguments and options that several commands share, with the same meaning in each; those of launchers too."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envmatrix.cli import console_io
from envmatrix.cli.argument_parser import (
    Arguments,
    Parser,
    declare,
    declare_flag,
    nonempty_name,
    nonempty_path,
    nonempty_text,
    whole_number,
    wrap_in_shell,
)
from envmatrix.durations_and_sizes import parse_duration, parse_price, percent_as_fraction
from envmatrix.engines.catalog import AUTO, ENGINES, choose_engine
from envmatrix.engines.catalog import DEFAULT as DEFAULT_ENGINE
from envmatrix.errors import InputError
from envmatrix.launchers.base import Option
from envmatrix.launchers.catalog import DEFAULT, LAUNCHERS, check_options, loadable_kinds

if TYPE_CHECKING:
    from envmatrix.api.user_program.program_options import ProgramPlace, ProgramRequest
    from envmatrix.api.user_program.single_remote_trial import SingleTrial
    from envmatrix.matrix.environment_files import EnvironmentFile
    from envmatrix.system.host import Host
    from envmatrix.trials.environment_for_commands import Session
    from envmatrix.trials.new_run_options import NewRun
    from envmatrix.trials.overrides import Overrides

#: Options for a program, as named in the namespace.
_PROGRAM_OPTIONS = (
    "setup", "prepare", "cleanup", "warmup", "parameter_list", "requirements", "metric_regex", "metric_json",
    "metric_steps", "save", "pass_env", "like", "image",
)  # fmt: skip
_FLAGS = {
    "--json": "print JSON for programs",
    "--quiet": "no progress",
    "--show-output": "print the output of each trial",
}
#: Argument or option -> metavar, help and kind.
_OPTIONS: Mapping[str, tuple[str, str, Callable[[str], Any]]] = {
    "environment": ("ENV", "a named environment", nonempty_name),
    "run": ("RUN", "the run (default: the newest)", nonempty_name),
    "--matrix": ("FILE", "the matrix (default: ./matrix.yaml)", Path),
    "--results": ("DIR", "default: ./results", Path),
    "--price": ("PRICE/h", "what the machines cost, such as 1.20/h: adds cost, and energy if readable", parse_price),
    "--atlas": (
        "FOLDER",
        "try what was faster in this atlas first, what was slower last (default: ./atlas, if it exists)",
        nonempty_path,
    ),
    "--image": (
        "REF",
        "with --engine docker, podman or apptainer: the image it runs in, a tag, a digest, or a .tar or .sif file",
        nonempty_text,
    ),
}
_MORE: Mapping[str, Mapping[str, Any]] = {"run": {"nargs": "?"}, "--results": {"default": Path("results")}}


def add(target: argparse._ActionsContainer, *names: str) -> None:
    """Add arguments and options that have the same meaning in several commands."""
    for name in names:
        if name in _FLAGS:
            declare_flag(target, name, _FLAGS[name])
        else:
            declare(target, name, *_OPTIONS[name], **_MORE.get(name, {}))


def add_output(parser: Parser, metavar: str, text: str, default: Path | None = None) -> None:
    """Add --output."""
    declare(parser, "--output", metavar, text, Path, default=default)


def add_engine(parser: Parser, *, of_run: bool = False) -> None:
    """Add --engine for commands with one engine; ``of_run``: the default is the engine of the run, if any."""
    engine_names = f"{', '.join(ENGINES.names())} or {AUTO}"
    text = f"the engine: {engine_names} (default: {'the one of the run, else ' if of_run else ''}{DEFAULT_ENGINE})"
    declare(parser, "--engine", "NAME", text, nonempty_name, default=None if of_run else DEFAULT_ENGINE)


def add_chosen(parser: Parser) -> None:
    """Add the argument ENV and options for its source: a matrix or a run."""
    add(parser, "environment")
    declare(parser, "--matrix", "FILE", "the matrix (default: ./matrix.yaml, or the newest run's matrix)", Path)
    declare(parser, "--run", "RUN", "take the environment from this run or search", nonempty_name)
    add(parser, "--results")
    add_engine(parser, of_run=True)


def add_image_and_launcher(parser: Parser) -> None:
    """Add --image, --launcher and the launchers' options, for commands that start one process."""
    add(parser, "--image")
    add_launcher(parser)


def open_chosen_environment(options: Arguments, host: Host | None = None) -> Session:
    """Prepare the environment that the options of ``add_chosen`` name, for ``host`` (None: this machine)."""
    from dataclasses import replace

    from envmatrix.api.environment_exec_and_export import open_environment

    gpus = read_image_and_launcher(options).gpus if "launcher" in options else ()
    image = getattr(options, "image", None) or ""
    session = console_io.call(open_environment, options, image=image, host=host)
    return replace(session, gpus=gpus)


def run_elsewhere(options: Arguments, limit_s: float, *, in_own_folder: bool = False) -> SingleTrial | None:
    """Run the command in the chosen environment as a trial of --launcher; None if that is this machine."""
    from envmatrix.api.user_program.single_remote_trial import find_node, run_single_trial

    place, command = read_image_and_launcher(options), tuple(options.command)
    if not place.is_on_other_machines:
        return None
    options.engine = choose_engine(console_io.print_progress) if options.engine == AUTO else options.engine
    host = find_node(options.engine or DEFAULT_ENGINE, place, limit_s, console_io.print_progress)
    session = open_chosen_environment(options, host)
    return run_single_trial(
        session, command, place, host, limit_s, options.results, console_io.print_progress, in_own_folder=in_own_folder
    )


def add_design(parser: Parser) -> None:
    """Add the argument DESIGN and the options that override it."""
    declare(parser, "design", "DESIGN", "the design (default: default)", nonempty_name, nargs="?", default="default")
    parser.declare_remedies({"--design": "write the design as a separate word: DESIGN"})
    add(parser, "--matrix")
    engines = f"the engines: {', '.join(ENGINES.names())} or {AUTO} (default: the design's)"
    parser.add_list("--engine", "NAME", engines, dest="engines")
    parser.add_list("--environments", "ENV", "only these and the baseline: a,b, or repeat the option")
    parser.add_list("--workloads", "NAME", "only these: a,b, or repeat the option")
    declare(parser, "--seed", "N", "seed of the random order", whole_number(0))
    declare(parser, "--budget", "TIME", "stop after this time, such as 90s, 10m or 2h", parse_duration)
    declare(parser, "--target", "PERCENT", "stop when every interval is this narrow, such as 2%%", percent_as_fraction)
    declare(parser, "--min-blocks", "N", "no verdict before this many blocks", whole_number(2))
    declare(parser, "--max-blocks", "N", "stop after this many blocks", whole_number(1))


def read_overrides(options: Arguments) -> Overrides:
    """Return the overrides of a design from the options that a command has."""
    from envmatrix.trials.overrides import Overrides

    return console_io.call(Overrides, options)


def read_new_run(options: Arguments, **more: Any) -> NewRun:
    """Return how the command that was typed starts and stores a new run; ``more`` replaces its options."""
    from envmatrix.trials.new_run_options import NewRun

    return console_io.call(NewRun, options, **more)


def add_program(parser: Parser) -> argparse._ArgumentGroup:
    """Add the options for a user's own program, similar to those of hyperfine."""
    group = parser.add_argument_group("with -- PROGRAM")
    declare(group, "-s --setup", "LINE", "shell line to run once, before the first run", wrap_in_shell)
    declare(group, "-p --prepare", "LINE", "shell line to run before each run, inside its trial", wrap_in_shell)
    declare(group, "-c --cleanup", "LINE", "shell line to run once, at the end", wrap_in_shell)
    declare(group, "-w --warmup", "N", "runs before the first block (default: 1)", whole_number(0))
    parser.add_list("--pass-env", "NAME", "variables of this shell to pass on: a,b", target=group)
    like = "variables, modules and Python of a .env, environment.yml, pyproject.toml, Dockerfile or batch script"
    declare(group, "--like", "FILE", like, Path)
    add(group, "--image")
    regex = "the speed: a number in ( ) in the output"
    json = "the speed: a number (a.b.0.c) in a JSON file it writes"
    declare(group, "--metric-regex", "PATTERN", regex, nonempty_text)
    steps = "the speed: each matching line of the output ends a step"
    declare(group, "--metric-steps", "PATTERN", steps, nonempty_text)
    declare(group, "--metric-json", "FILE:KEY", json, nonempty_text)
    return group


def _read_like(options: Arguments) -> EnvironmentFile | None:
    """Return what the file of --like sets, and print what of it is not used."""
    from envmatrix.matrix.environment_files import read_environment_file

    if options.like is None:
        return None
    settings = read_environment_file(options.like)
    parts = [f"{name}={value}" for name, value in settings.variables.items()]
    parts += [f"module {name}" for name in settings.modules]
    parts += [settings.interpreter] if settings.interpreter else []
    console_io.print_progress(f"from {options.like}, in every environment: {', '.join(parts) or 'nothing'}")
    for note in settings.notes:
        console_io.print_progress(f"note: {note}")
    return settings


def _check_results(results: Path) -> None:
    """Raise InputError, before a long trial run, for a place in which no run can be stored."""
    place = next(folder for folder in (results.absolute(), *results.absolute().parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "you may not write to it" if place.is_dir() else "it is a file"
        raise InputError(f"no run can be stored in {place}: {reason}", remedy="name another folder: --results DIR")


def read_program(options: Arguments, engines: Sequence[str]) -> ProgramRequest:
    """Return the program and the options of ``add_program``. Raises InputError for more than one metric."""
    from envmatrix.api.user_program.program_options import ProgramRequest, make_place
    from envmatrix.trials.new_run_options import check_run_name

    _check_results(options.results)
    if options.name:
        check_run_name(options.name)
    metric_options = [name for name in ("metric_regex", "metric_steps", "metric_json") if getattr(options, name)]
    if len(metric_options) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in metric_options)
        raise InputError(
            f"{names} cannot be combined",
            remedy="use one of them; for several metrics, edit the matrix that `bench --save` writes",
        )
    words, pass_env, like = tuple(options.command), tuple(options.pass_env or ()), _read_like(options)
    launcher, image = console_io.read_launcher_options(options), options.image or ""
    place = make_place(engines, image, options.launcher, launcher, console_io.print_progress)
    return console_io.call(ProgramRequest, options, words=words, pass_env=pass_env, like=like, place=place, atlas=None)


def refuse_program_options(options: Arguments, command: str, *more: str) -> None:
    """Raise an InputError for an option that only a program can have; ``more`` are those of one command."""
    option = next((name for name in (*_PROGRAM_OPTIONS, *more) if getattr(options, name, None) is not None), None)
    if option:
        message = f"--{option.replace('_', '-')} needs a program"
        raise InputError(message, remedy=f"envmatrix {command} -- python train.py")


def refuse_design_options(conflicting: Mapping[str, object], remedy: str) -> None:
    """Raise an InputError for a part of a design (name -> its value) that was given with a program."""
    conflict = next((name for name, value in conflicting.items() if value), None)
    if conflict:
        message = f"{conflict} cannot be combined with a program: it has a matrix of its own"
        raise InputError(message, remedy=remedy)


def add_launcher(parser: Parser) -> None:
    """Add --launcher and the options of every launcher."""
    text = f"where trials run: {', '.join(LAUNCHERS.names())} (default: {DEFAULT})"
    declare(parser, "--launcher", "NAME", text, nonempty_name, default=DEFAULT)
    add_launcher_options(parser)


def add_launcher_options(parser: Parser) -> None:
    """Add the options of every launcher; launchers that declare the same option share it."""
    added: dict[str, Option] = {}
    for kind in loadable_kinds():
        mark = " (experimental)" if getattr(kind, "experimental", False) else ""
        group = parser.add_argument_group(f"with --launcher {kind.name}{mark}") if kind.options else None
        for option in kind.options:
            is_new = option.name not in added
            declared = added.setdefault(option.name, option)
            if declared.takes != option.takes or (is_new and f"--{option.name}" in parser.option_names):
                raise InputError(
                    f"launcher {kind.name} defines --{option.name}, which already has another meaning here",
                    remedy="uninstall the launcher's package; its authors have to rename the option",
                )
            if is_new and group:
                _add_option(parser, group, option)


def _add_option(parser: Parser, group: argparse._ArgumentGroup, option: Option) -> None:
    word, dest, text = f"--{option.name}", console_io.LAUNCHER_PREFIX + option.name, option.help.replace("%", "%%")
    if option.takes == "names":
        parser.add_list(word, option.metavar, f"{text}: a,b, or repeat the option", dest=dest, target=group)
    elif option.takes == "duration":
        declare(group, word, option.metavar, text, parse_duration, dest=dest)
    else:
        declare(group, word, option.metavar, text, dest=dest)


def read_image_and_launcher(arguments: Arguments) -> ProgramPlace:
    """Return where one process runs. On this machine, ``--gpus`` names the GPUs of its container: all, or 0,1."""
    from envmatrix.api.user_program.program_options import ProgramPlace

    options, image = dict(console_io.read_launcher_options(arguments)), arguments.image or ""
    if arguments.launcher != DEFAULT:
        return ProgramPlace("", image, ("all",) if options.get("gpus") else (), arguments.launcher, options)
    gpus = options.pop("gpus", "")
    check_options(LAUNCHERS.make(DEFAULT), options)
    return ProgramPlace("", image, tuple(word.strip() for word in str(gpus).split(",") if word))
