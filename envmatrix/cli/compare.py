"""The ``envmatrix compare`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import (
    Arguments,
    Parser,
    declare,
    declare_flag,
    nonempty_name,
    nonempty_path,
    whole_number,
)
from envmatrix.durations_and_sizes import parse_duration, parse_tolerance
from envmatrix.errors import ExitCode, InputError, most_important_code
from envmatrix.launchers.catalog import DEFAULT

if TYPE_CHECKING:
    from envmatrix.api.result import Result
    from envmatrix.stats.comparisons.result import Comparison

#: The most differences that are printed for each effect.
_MOST_DIFFERENCES = 8
#: Options that need --rerun.
_RERUN_OPTIONS = ("design", "workloads", "engines", "budget", "max_blocks", "name")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "old", "RUN", "the run, or the older of two runs", nonempty_name)
    declare(parser, "new", "NEWER", "the newer run", nonempty_name, nargs="?")
    parser.add_list("--environments", "ENV", "OLD,NEW within one run; for two runs: only these")
    text = "exit code 5 if it is surely slower by more than this (0: by anything)"
    declare(parser, "--fail-slower", "PERCENT", text, parse_tolerance)
    declare_flag(parser, "--fail-undecided", "with --fail-slower: exit code 6 if there are too few data to say")
    declare(parser, "--junit", "FILE", "write the answers as JUnit tests, for a CI server", nonempty_path)
    declare_flag(parser, "--anyway", "compare runs that are not comparable, with a warning")
    shared_options.add(parser, "--results", "--json", "--quiet")
    _add_rerun(parser)
    parser.examples(
        "envmatrix compare reference-default --environments baseline,tcmalloc",
        "envmatrix compare --rerun ../base . --fail-slower 3%",
    )
    parser.exit_codes(
        "7 new did other work, 5 slower (with --fail-slower), 6 cannot say (with --fail-undecided), otherwise 0;",
        "with --rerun also those of bench. If several apply: 130, 4, 7, 5, 6, 3.",
    )


def _add_rerun(parser: Parser) -> None:
    text = "measure both again, in the same blocks; each is a matrix, a folder with a matrix.yaml, or a run"
    declare_flag(parser, "--rerun", text)
    group = parser.add_argument_group("with --rerun")
    declare(group, "--design", "DESIGN", "the design of the newer one (default: default)", nonempty_name)
    parser.add_list("--workloads", "NAME", "only these: a,b, or repeat the option", target=group)
    parser.add_list("--engine", "NAME", "the engines (default: the design's)", target=group, dest="engines")
    declare(group, "--budget", "TIME", "stop after this time, such as 90s, 10m or 2h", parse_duration)
    declare(group, "--max-blocks", "N", "stop after this many blocks", whole_number(1))
    declare(group, "--name", "NAME", "name of the run (default: design and time)")
    shared_options.add_launcher(parser)


def run(arguments: Arguments) -> int:
    """Compare two environments of one run, two runs, or two matrices in one new run."""
    _check_options(arguments)
    if arguments.rerun:
        return _rerun(arguments)
    from envmatrix.api.result import Result as Stored
    from envmatrix.api.run_results import compare
    from envmatrix.api.runs import find_run_and_record_reading

    comparison = console_io.call(compare, arguments, allowed=arguments.fail_slower or 0.0)
    if arguments.new is not None:
        return _report_comparison(comparison, arguments)
    return _report_comparison(
        comparison, arguments, Stored.of(find_run_and_record_reading(arguments.old, arguments.results))
    )


def _check_options(arguments: Arguments) -> None:
    if arguments.fail_undecided and arguments.fail_slower is None:
        raise InputError("--fail-undecided works only with --fail-slower", remedy="add --fail-slower 3%")
    if arguments.junit and not arguments.junit.parent.is_dir():
        raise InputError(f"--junit: no such folder: {arguments.junit.parent}", remedy="create it, or pass another file")
    if arguments.junit and arguments.junit.is_dir():
        raise InputError(f"--junit: {arguments.junit} is a folder", remedy=f"--junit {arguments.junit / 'compare.xml'}")
    if not arguments.rerun:
        given = [name for name in _RERUN_OPTIONS if getattr(arguments, name) is not None]
        given += [
            *console_io.read_launcher_options(arguments),
            *(["launcher"] if arguments.launcher != DEFAULT else []),
        ]
        if given:
            option = given[0].replace("_", "-")
            raise InputError(f"--{option} works only with --rerun", remedy="to compare stored runs, leave it out")
    elif arguments.new is None:
        raise InputError("--rerun compares two matrices, folders or runs", remedy="envmatrix compare --rerun OLD NEW")
    elif arguments.anyway:
        raise InputError("--anyway is for stored runs: with --rerun, both sides must do the same work")


def _rerun(arguments: Arguments) -> int:
    """Measure both sides in one run and compare them; if interrupted, print how to continue."""
    from envmatrix.api import paired_reruns
    from envmatrix.api.run_results import compare

    overrides, new_run = shared_options.read_overrides(arguments), shared_options.read_new_run(arguments)
    experiment = console_io.call(paired_reruns.begin_rerun, arguments, overrides=overrides, new_run=new_run)
    result = progress_and_result.finish(experiment, arguments)
    code = progress_and_result.explain_exit(result)
    if code == ExitCode.INTERRUPTED:
        console_io.print_progress(f"then: envmatrix compare {result.name}{_gate_options(arguments)}")
        return code
    return _report_comparison(compare(result, allowed=arguments.fail_slower or 0.0), arguments, result, code)


def _report_comparison(
    comparison: Comparison, arguments: Arguments, result: Result | None = None, code: ExitCode = ExitCode.FINE
) -> ExitCode:
    """Print a comparison and return the exit code: the first of the gate's and ``code``.

    ``result`` is the run that more blocks could decide (None: no run).
    """
    gate = comparison.gate(fail_slower=arguments.fail_slower is not None, fail_undecided=arguments.fail_undecided)
    code = most_important_code(gate, code)
    if arguments.json:
        console_io.print_json(comparison.to_json(code))
    else:
        _print_comparison(comparison)
        _print_evidence_differences(comparison, arguments, result)
    if arguments.junit:
        from envmatrix.report.formats.junit import comparison_to_junit

        console_io.write_or_print(
            comparison_to_junit(comparison, fail_undecided=arguments.fail_undecided), arguments.junit
        )
    if arguments.fail_slower is not None and result and not arguments.quiet:
        names = () if arguments.rerun else arguments.environments or ()
        environments = f" --environments {','.join(names)}" if names else ""
        command = f"envmatrix compare {result.name}{environments}"
        line = progress_and_result.gate_advice(
            result, comparison, arguments.fail_slower, command + _gate_options(arguments)
        )
        if line:
            console_io.print_progress(line)
    return code


def _gate_options(arguments: Arguments) -> str:
    """Return the gate's options as given."""
    if arguments.fail_slower is None:
        return ""
    return f" --fail-slower {100 * arguments.fail_slower:g}%{' --fail-undecided' * arguments.fail_undecided}"


def _print_comparison(comparison: Comparison) -> None:
    from envmatrix.report.explanation import line_of, reasons_of
    from envmatrix.system.printable import printable_line

    why = [
        f"why {item.new}: {text}"
        for item in comparison.items
        if item.why
        for text in (line_of(item.why), *reasons_of(item.why))
    ]
    console_io.print_folded("\n".join(printable_line(line, 1000) for line in (*comparison.lines(), *why)))


def _rank(path: str) -> int:
    """Return the place of a kind of difference: what somebody set, then what was chosen, then what a runtime lists."""
    kinds = ("variables.", "packages.", "torch.", "malloc", "openmp.library", "onednn.", "cpu.")
    if path.startswith(("openmp.settings.", "libraries.")):
        return len(kinds) + 1
    return next((place for place, kind in enumerate(kinds) if path.startswith(kind)), len(kinds))


def _print_evidence_differences(comparison: Comparison, arguments: Arguments, result: Result | None) -> None:
    """Print what the process read back differently on both sides of each effect."""
    from envmatrix.api.differences import recorded_differences
    from envmatrix.system.printable import printable_line

    runs = (result.folder, result.folder) if result else (arguments.old, arguments.new)
    pairs = {
        (item.old, item.new) if result else (item.name.partition(":")[0],) * 2
        for item in comparison.items
        if item.ratio is not None
    }
    for first, second in sorted(pairs):
        try:
            differences = recorded_differences(runs[0], first, runs[1], second, arguments.results)
        except InputError:  # an arm's full name, or no successful trial
            continue
        if not differences:
            continue
        first_ones = sorted(differences, key=lambda one: (_rank(one.path), one.path))[:_MOST_DIFFERENCES]
        texts = (f"{one.path}: {one.first or '-'} -> {one.second or '-'}" for one in first_ones)
        title = f"differences between {first} and {second}" if result else f"differences of {first} between the runs"
        more = f"{len(differences) - _MOST_DIFFERENCES} more" if len(differences) > _MOST_DIFFERENCES else ""
        more += f": envmatrix diff {first} {second} --run {runs[0]}" if more and result else ""
        lines = (*(printable_line(text, 150) for text in texts), *([more] if more else []))
        console_io.print_text("\n  ".join((f"{title}: {len(differences)}", *lines)))
