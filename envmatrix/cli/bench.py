"""The ``envmatrix bench`` command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, declare_flag, name_list
from envmatrix.cli.unused_stdin import check_unused_input
from envmatrix.errors import ExitCode, InputError

if TYPE_CHECKING:
    from envmatrix.matrix import Matrix

#: Options of hyperfine with another name here -> what to use instead.
_HYPERFINE_OPTIONS = {
    **dict.fromkeys(("--runs", "--max-runs", "-M"), "a block runs each environment once: --max-blocks N"),
    **dict.fromkeys(("--min-runs", "-m"), "a block runs each environment once: --min-blocks N"),
    **dict.fromkeys(("--parameter-scan", "-P", "-D"), "list the values: --parameter-list NAME 1,2,3"),
    **dict.fromkeys(("--shell", "-S", "-N"), "programs run without a shell; if you need one: -- bash -c 'LINE'"),
    **dict.fromkeys(("--ignore-failure", "-i"), "a failed trial is counted with its reason, and the run continues"),
    **dict.fromkeys(("--command-name", "-n"), "--name NAME names the run"),
    "--export-json": "--json prints it; summary.json in the run's folder has it too",
    "--export-csv": "use `envmatrix report --as csv` when the run is complete",
    "--export-markdown": "report.md in the run's folder has it",
    "--output": "--show-output prints the output of each trial",
}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add_design(parser)
    text = "change what differs between two environments one by one, and print the effect of each change"
    declare(parser, "--bisect", ("ENV", "OTHER"), text, nargs=2)
    declare(parser, "--name", "NAME", "name of the run (default: design and time)")
    shared_options.add(parser, "--results")
    declare_flag(parser, "--host-names", "record real host names (default: node-1, node-2, ...)")
    shared_options.add(parser, "--price")
    shared_options.add_launcher(parser)
    declare_flag(parser, "--dry-run", "with a launcher that submits scripts: print the first script, submit nothing")
    shared_options.add(parser, "--json", "--quiet")
    _add_program(parser)
    parser.set_defaults(design=None)
    parser.declare_remedies(_HYPERFINE_OPTIONS)
    parser.examples(
        "envmatrix bench -- python train.py --epochs 1",
        "envmatrix bench --environments tcmalloc,intel-omp --engine docker --name containers",
    )
    parser.exit_codes(
        "0 all trials were successful, 3 some failed or are missing, 4 none was successful,",
        "7 an environment did other work, 130 interrupted. If several apply: 130, 4, 7, 3.",
    )


def _add_program(parser: Parser) -> None:
    """Add the user's own program and its options."""
    parser.accept_command(
        "your own program (no config file needed): run it once, then compare environments for it", instead=True
    )
    group = shared_options.add_program(parser)
    declare(
        group, "-L --parameter-list", ("NAME", "A,B"), "run once for each value of {NAME}", nargs=2, action="append"
    )
    text = "install these requirements on top of its Python, in a venv (requirements.txt, pyproject.toml)"
    declare(group, "-r --requirements", "FILE", text, Path, action="append")
    shared_options.add(group, "--atlas")
    declare(
        group, "--save", "FILE", "write the matrix (default: ./matrix.yaml)", Path, nargs="?", const=Path("matrix.yaml")
    )
    shared_options.add(parser, "--show-output")


def run(arguments: Arguments) -> int:
    """Prepare, run and report one design, or a program."""
    if arguments.command:
        return _run_program(arguments)
    shared_options.refuse_program_options(arguments, "bench", "atlas")
    if arguments.design is None and arguments.matrix is None and not Path("matrix.yaml").exists():
        raise InputError(
            "no program given, and no matrix.yaml in this folder",
            remedy="your own program: `envmatrix bench -- python train.py`; the built-in benchmark (downloads "
            "PyTorch): `envmatrix bench default`",
        )
    name = arguments.design or ""
    if name.endswith((".py", ".sh")) or "/" in name:
        program = f"python {name}" if name.endswith(".py") else name if "/" in name else f"./{name}"
        raise InputError(
            f"{name!r} is a program, not a design", remedy=f"write `--` before a program: envmatrix bench -- {program}"
        )
    arguments.design = arguments.design or "default"
    return _run_design(arguments)


def _run_program(arguments: Arguments) -> int:
    """Run a program once, generate a matrix for it, and run that."""
    from envmatrix.api import runs
    from envmatrix.api.atlas import read_named_or_local_atlas
    from envmatrix.api.user_program import matrix_for_program

    _refuse_design_options(arguments)
    request = replace(
        shared_options.read_program(arguments, arguments.engines or ()),
        parameters=tuple((name, tuple(name_list(values))) for name, values in arguments.parameter_list or ()),
        requirements=tuple(arguments.requirements or ()),
        atlas=read_named_or_local_atlas(arguments.atlas, console_io.print_progress),
    )
    overrides, file = shared_options.read_overrides(arguments), arguments.save or Path("matrix.yaml")
    show = console_io.print_progress if arguments.show_output else lambda _: None
    progress = console_io.print_progress
    with check_unused_input(request.words):
        generated = matrix_for_program.run_program_and_draft_matrix(request, overrides, file, progress, show)
    if generated.more:
        progress(generated.more)
    with matrix_for_program.run_cleanup_on_failure(generated.matrix.workloads.values(), progress):
        if arguments.save:
            matrix_for_program.write_new_file(file, generated.text)
            matrix_option = "" if file == Path("matrix.yaml") else f" --matrix {shlex.quote(str(file))}"
            progress(f"wrote {file}: to run it again, `envmatrix bench{matrix_option}`")
        options = request.place.launcher_options
        new_run = shared_options.read_new_run(
            arguments, name=arguments.name or generated.name, launcher_options=options
        )
        experiment = runs.begin_run("default", overrides, new_run, matrix=generated.matrix)
        experiment = replace(experiment, trial_run_s=generated.took_s)
    code = progress_and_result.run_and_show(experiment, arguments, is_set_up=True)
    if generated.more and code == ExitCode.FINE:
        progress(generated.more)
    return code


def _refuse_design_options(arguments: Arguments) -> None:
    """Refuse options of a design with a program, before anything runs."""
    conflicting = {
        f"DESIGN ({arguments.design})": arguments.design,
        "--matrix": arguments.matrix,
        "--workloads": arguments.workloads,
        "--bisect": arguments.bisect,
        "--dry-run": arguments.dry_run,
    }
    shared_options.refuse_design_options(conflicting, "write that matrix with --save, edit it, then run it")
    numeric_file = next((str(file) for file in arguments.requirements or () if str(file).isdigit()), None)
    if numeric_file:
        raise InputError(
            f"-r {numeric_file}: here, -r takes a requirements file",
            remedy=f"for hyperfine's -r {numeric_file}, use --max-blocks {numeric_file}: a block runs each "
            "environment once",
        )
    if arguments.save and arguments.save.exists():
        raise InputError(f"{arguments.save} already exists", remedy="pass another file: --save FILE")


def _run_design(arguments: Arguments) -> int:
    from envmatrix.api import plans, runs

    if arguments.bisect and arguments.environments:
        raise InputError("--bisect chooses the environments itself", remedy="leave out --environments")

    matrix: Path | Matrix | None = arguments.matrix
    if arguments.bisect:
        first, last = arguments.bisect
        matrix = plans.bisected_matrix(arguments.design, first, last, arguments.matrix, console_io.print_progress)
    scripts = runs.script_preview(arguments.launcher) if arguments.dry_run else None
    overrides, new_run = shared_options.read_overrides(arguments), shared_options.read_new_run(arguments)
    experiment = console_io.call(runs.begin_run, arguments, overrides=overrides, new_run=new_run, matrix=matrix)
    if scripts:
        console_io.print_text("\n".join(scripts(experiment)))
        return 0
    return progress_and_result.run_and_show(experiment, arguments)
