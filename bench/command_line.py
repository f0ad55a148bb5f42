"""The command line, ``python -m bench [COMMAND] ...``: parsing, actions, error messages and exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from bench import requested_memory_policy
from bench.errors import BenchError, RunError, print_error


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports a bad option in one line with the closest known option."""

    def known(self) -> list[str]:
        """Return every option of this command and of its subcommands."""
        names: list[str] = []
        for action in self._actions:
            names += action.option_strings[:1]  # the spelling with "-"; the one with "_" is an alias
            subcommands = action.choices if isinstance(action.choices, dict) else {}
            for name, command in subcommands.items():
                names += [name, *command.known()]
        return names

    def error(self, message: str) -> NoReturn:
        import difflib

        unknown = message.partition("unrecognized arguments: ")[2].split()
        matches = difflib.get_close_matches(unknown[0].partition("=")[0], self.known(), n=1) if unknown else []
        raise BenchError(message + (f" (did you mean {matches[0]}?)" if matches else ""))


def _parser(command: str = "") -> _Parser:
    """Return the parser with the arguments of one command, or of all: those of ``run`` take milliseconds."""
    parser = _Parser(
        prog="python -m bench",
        allow_abbrev=False,
        description="Run one workload in this environment and print or write its record (JSON). "
        "Without a command: run, with the book's Fashion-MNIST CNN.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, (_, add_arguments, summary) in _COMMANDS.items():
        subparser = commands.add_parser(name, allow_abbrev=False, help=summary)
        if command in ("", name):
            add_arguments(subparser)
            subparser.add_argument("--traceback", action="store_true", help="show the whole traceback of a failure")
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    from bench import arguments

    _add_record(parser)
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the data sets (default: the user's cache folder)")
    _add_gate(parser)
    parser.add_argument(
        "--look", type=_seconds, metavar="SECONDS", help="time the steps from the first one on, for so long at least"
    )
    _add_node(parser)
    arguments.add_options(parser)


def _add_data(parser: argparse.ArgumentParser) -> None:
    from bench import options

    parser.add_argument("--data-dir", required=True, metavar="DIR", help="the folder to put it in")
    parser.add_argument("--data", default=options.defaults()["data"], metavar="NAME", help="which set")
    parser.add_argument("--offline", action="store_true", help="do not try to download")


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", metavar="FILE", help="file for the record (default: standard output)")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def _add_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gate", metavar="DIR", help="folder of the pipes at which it waits for its turns (docs/record.md)"
    )


def _add_node(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("one start on each of several nodes (docs/parallel.md)")
    group.add_argument("--node-rank", type=int, metavar="K", help="number of this node, from 0")
    group.add_argument(
        "--meet", metavar="HOST:PORT", help="address of node 0 and a free port there, at which all processes meet"
    )
    group.add_argument("--node-name", metavar="NAME", help="what to call this node (default: its host name)")


def _add_program(parser: argparse.ArgumentParser) -> None:
    _add_record(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--metric-regex", metavar="PATTERN", help="a number in ( ) in its output; the last match")
    source.add_argument("--metric-json", nargs=2, metavar=("FILE", "KEY"), help="a dotted key of a JSON file")
    source.add_argument("--metric-wall", action="store_true", help="its wall time (the default)")
    source.add_argument("--metric-steps", metavar="PATTERN", help="steps a second: a line of its output ends each step")
    parser.add_argument("--metric-warmup", type=int, default=1, metavar="N", help="steps before the first that counts")
    parser.add_argument("--metric-name", metavar="NAME", default="metric", help="what to call it in the record")
    parser.add_argument("--metric-unit", metavar="UNIT", default="", help="what its number is converted to, such as ms")
    shape = '{"name": ..., "regex": ...} or {"name": ..., "json_file": "FILE:KEY"}, '
    parser.add_argument(
        "--also", metavar="JSON", action="append", default=[], help=f"a further metric: {shape}with better and unit"
    )
    parser.add_argument(
        "--check", metavar="JSON", action="append", default=[], help=f"what shows equal work: {shape}with tolerance"
    )
    parser.add_argument(
        "--prepare",
        metavar="WORD",
        action="append",
        default=[],
        help="a word of a command, given once for each, that is run before it and not measured",
    )
    _add_gate(parser)
    parser.add_argument("--better", choices=["higher", "lower"], default="lower", help="which way is better")
    parser.add_argument("--limit-s", type=float, metavar="SECONDS", help="end it after this time")
    parser.add_argument("--log", metavar="FILE", help="file for the program's output (default: standard error)")
    parser.add_argument("--log-limit-bytes", type=int, default=1 << 20, metavar="N", help="what is kept of it")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="what to run")


def _program(arguments: argparse.Namespace) -> None:
    from bench import metrics_from_program, record, user_program
    from bench.evidence import stop_and_continue_count

    if not arguments.gate:  # with a gate, the process is stopped between its turns on purpose
        stop_and_continue_count.watch(children=True)
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise BenchError("command wants a program: python -m bench command [options] -- PROGRAM ARGUMENTS")
    record.check_writable(arguments.record)
    file, key = arguments.metric_json or (None, None)
    sources = {"regex": arguments.metric_regex, "json": file, "steps": arguments.metric_steps}
    kind, source = next(((kind, source) for kind, source in sources.items() if source is not None), ("wall", None))
    better, warmup = "higher" if kind == "steps" else arguments.better, arguments.metric_warmup
    wanted_numbers = metrics_from_program.WantedNumbers(
        metrics_from_program.MetricSource(
            arguments.metric_name, kind, source, key, better, arguments.metric_unit, warmup=warmup
        ),
        tuple(metrics_from_program.parse_also_or_check(text, check=False) for text in arguments.also),
        tuple(metrics_from_program.parse_also_or_check(text, check=True) for text in arguments.check),
    )
    record.check_writable(arguments.log)
    with open(arguments.log, "wb") if arguments.log else contextlib.nullcontext() as log:
        document = user_program.run(
            argv, wanted_numbers, arguments.limit_s, log, arguments.log_limit_bytes, arguments.prepare, arguments.gate
        )
    record.write(document, arguments.record)


def _run(parsed: argparse.Namespace) -> None:
    from bench import arguments, options, record, trial_process
    from bench.evidence import stop_and_continue_count
    from bench.parallel import node_coordination

    if not parsed.gate:  # with a gate, the process is stopped between its turns on purpose
        stop_and_continue_count.watch()
    names = options.listed()
    values = arguments.from_texts({name: text for name, text in vars(parsed).items() if name in names})
    record.check_writable(parsed.record)
    node = node_coordination.from_arguments(parsed, values)
    place, gate, look_s = parsed.data_dir or _cache_folder(), parsed.gate, parsed.look
    with _report_memory_kill(parsed):
        keep = partial(record.write, path=parsed.record)
        document = trial_process.run(values, place, node=node, gate=gate, look_s=look_s, keep=keep)
    if document is None:
        return
    record.write(document, parsed.record)
    print(_one_line(document), file=sys.stderr)


@contextlib.contextmanager
def _report_memory_kill(chosen: argparse.Namespace) -> Iterator[None]:
    """Add "memory ran out" to an error of the run if the kernel killed a process, such as a data loader's worker."""
    from bench.evidence import cgroup, reading

    kills = reading.attempt(cgroup.oom_kills)
    try:
        yield
    except BenchError:
        raise
    except Exception as error:
        if _is_option_error(error):
            raise
        ran_out = cgroup.memory_ran_out(kills)
        if not ran_out:
            raise
        if chosen.traceback:
            _print_traceback()
        raise RunError(f"{error if isinstance(error, RunError) else _error_text(error)}{ran_out}") from error


def _one_line(document: Mapping[str, Any]) -> str:
    if document["skipped"]:
        return f"bench: skipped: {document['skipped']}"
    metrics, result = document["metrics"], document["result"]
    accuracy = "" if result["accuracy"] is None else f", accuracy {result['accuracy']:.1%}"
    return (
        f"bench: {document['workload']['options']['model']} on {document['data']['name']}: "
        f"{metrics['samples_per_s']:.0f} samples/s, "
        f"{result['steps']} steps in {metrics['training_s']:.2f} s{accuracy}"
    )


def _evidence(arguments: argparse.Namespace) -> None:
    from bench import record, trial_process

    record.check_writable(arguments.record)
    record.write(trial_process.evidence_only(), arguments.record)


def _data(arguments: argparse.Namespace) -> None:
    from bench import data_sets

    prepared = data_sets.prepare(arguments.data, arguments.data_dir, arguments.offline)
    answer = {
        "name": prepared.set.name,
        "stand_in": prepared.set.stand_in,
        "digest": prepared.set.digest,
        "path": os.path.abspath(prepared.path),
        "reason": prepared.reason,
    }
    print(json.dumps(answer), flush=True)


def _cache_folder() -> str | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(base, "envmatrix", "data")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return None
    return folder


#: Command -> its action, its arguments, and its line of help.
_COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[[Any], None], str]] = {
    "run": (_run, _add_run, "train, measure, and give the record"),
    "evidence": (_evidence, _add_record, "print what this environment really is, without a benchmark"),
    "data": (_data, _add_data, "download or make a data set (needs no torch)"),
    "command": (_program, _add_program, "measure a program of your own"),
}


def main(argv: list[str]) -> int:
    """Run a command and return its exit status: 0 success, 1 failed run, 2 bad input, 130 interrupted."""
    if not argv or argv[0] not in (*_COMMANDS, "-h", "--help"):
        argv = ["run", *argv]
    try:
        arguments = _parser(argv[0] if argv[0] in _COMMANDS else "").parse_args(argv)
        requested_memory_policy.ask()
        _COMMANDS[arguments.command][0](arguments)
    except BenchError as error:
        return print_error(error, 2)
    except RunError as error:
        return print_error(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the record has closed the pipe (`python -m bench | head`).
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open until the process ends
        return 0
    except Exception as error:
        if _is_option_error(error):
            return print_error(error, 2)
        if "--traceback" in argv:
            _print_traceback()
        return print_error(_error_text(error), 1)
    return 0


def _is_option_error(error: Exception) -> bool:
    """Return whether an option has a bad value; only commands with options load their module."""
    options = sys.modules.get("bench.options")
    return options is not None and isinstance(error, options.OptionError)


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()


def _error_text(error: Exception) -> str:
    import traceback

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename:
        return f"no space is left on the disk of {os.path.dirname(error.filename)}: free some, or give it more"
    last_frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{os.path.basename(last_frame.filename)}:{last_frame.lineno}"
    return f"{type(error).__name__}: {error} ({location}; --traceback shows all)"
