"""Programs on the command line: run once, then benchmarked with a generated matrix."""

from __future__ import annotations

import datetime
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from envmatrix.api.atlas import order_environments
from envmatrix.api.user_program.environment_selection import (
    left_out_text,
    overridden_environments,
    select_available_environments,
    time_text,
    total_time_text,
    usable_environments,
)
from envmatrix.api.user_program.metric_choice import check_patterns, choose_metric
from envmatrix.api.user_program.program_options import (
    IN_PLACE,
    ProgramPlace,
    ProgramRequest,
    check_place,
    without_secrets_and_host_paths,
)
from envmatrix.block import interrupts
from envmatrix.errors import EnvmatrixError, InputError, Where
from envmatrix.evidence import notices
from envmatrix.evidence.evidence_models import Evidence, OwnSetting
from envmatrix.evidence.trial_record import Record
from envmatrix.matrix import Matrix
from envmatrix.matrix.additions import only_levels
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import MatrixTemplate
from envmatrix.plan.environment import Image
from envmatrix.system import bench_options
from envmatrix.system.machine_lock import alone_on_machine
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.validation_messages import validation_message
from envmatrix.trials import orphans
from envmatrix.trials.overrides import Overrides, apply_overrides
from envmatrix.trials.user_program.command_line_check import (
    check_command_line,
    program_label,
    safe_name,
    unwrap_uv_run,
    with_absolute_script_if_outside,
)
from envmatrix.trials.user_program.file_digests import program_files
from envmatrix.trials.user_program.hooks import run_cleanup, run_setup
from envmatrix.trials.user_program.invocation import scripts_outside
from envmatrix.trials.user_program.mounts import folders_to_mount
from envmatrix.trials.user_program.passed_variables import describe_shell_variables, likely_needed_variables
from envmatrix.trials.user_program.preliminary_run import (
    ProgramCommand,
    TrialRunResult,
    find_program,
    run_once,
    with_interpreter,
)  # fmt: skip
from envmatrix.trials.user_program.settings_in_code import describe_conflicts, own_settings

#: A program that takes longer than this (seconds) for one run needs a matrix of its own.
_TRIAL_RUN_LIMIT_S = 4 * 3600.0
#: How many environments a matrix has if the program's duration is unknown.
_DRAFT_ENVIRONMENTS = 4
_IMPORT_LIMIT_S = 120.0
_GNU_OPENMP = "libgomp"
_HOOKS = ("setup", "prepare", "cleanup")


@dataclass(frozen=True)
class GeneratedMatrix:
    """A matrix made for a program: its text with comments, the name of its run, and the program's duration.

    ``more`` lists environments left out for an early first answer, and the budget that tests all; otherwise ''.
    ``torch``: it runs PyTorch with GNU's OpenMP runtime. ``on_gpu``: how many of its processes used a GPU. ``own``:
    what the program sets itself.
    """

    matrix: Matrix
    text: str
    name: str
    took_s: float
    more: str
    torch: bool
    on_gpu: int
    own: tuple[OwnSetting, ...] = ()


def run_program_and_draft_matrix(
    request: ProgramRequest, overrides: Overrides, file: Path, progress: ProgressCallback, show: Callable[[str], None]
) -> GeneratedMatrix:
    """Run a program once and make a matrix for it, as if it were in ``file``. ``show`` receives its output.

    This runs ``setup`` for every value of the parameters. Raises InputError for unusable arguments, NothingRanError for
    a program that fails.
    """
    if not request.place.image:
        request = replace(request, words=with_absolute_script_if_outside(unwrap_uv_run(request.words, progress)))
    program = request.program()
    workloads = _workloads(request, program)
    template = _basic_template(request, program, workloads)
    _check_place(request, template, file, progress)
    _check_options(request, template, overrides, file)
    with run_cleanup_on_failure(workloads, progress):
        run_setup(workloads, progress)
        image = request.image(program.interpreter)
        outlook = partial(total_time_text, workloads=len(workloads), overrides=overrides)
        first_run = _run_program(workloads[0], image, request.warmup, progress, show, request.place, outlook)
        own = tuple(own_settings(first_run.record.evidence or Evidence(), map(Path, program.command)))
        template = replace(template, torch=_runs_torch(first_run.record))
        conflicts = overridden_environments(template, own)
        template = _measured_template(template, first_run, request, conflicts, progress)
        atlas = None if overrides.environments else request.atlas
        template = order_environments(template, atlas, progress, is_elsewhere=request.place.is_on_other_machines)
        trial_s = first_run.wall_s * len(workloads)
        template, unavailable = select_available_environments(template, trial_s, overrides, progress)
        progress(_selection_text(template.environments, torch=template.torch, record=first_run.record))
        arms = len(overrides.environments or template.environments) + 2
        progress(time_text(template.budget_s, trial_s, arms, overrides))
        text = _with_relative_paths(template, file).text()
        name = f"{program_label(request.words)}-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}"
        more = left_out_text(template, first_run, overrides, {**conflicts, **unavailable})
        matrix = _drop_unused_levels(parse(text, file), overrides)
        return GeneratedMatrix(matrix, text, name, first_run.wall_s, more, template.torch, template.on_gpu, own)


def draft_matrix(request: ProgramRequest, interpreter: str | None, file: Path, progress: ProgressCallback) -> str:
    """Return the text of a matrix for a program without running it, as if it were in ``file``.

    ``interpreter`` is its Python (None: the one that ``run_program_and_draft_matrix`` finds). Raises InputError.
    """
    check_command_line(request.words)
    request = replace(request, words=with_absolute_script_if_outside(unwrap_uv_run(request.words, progress)))
    program = with_interpreter(request.words, interpreter) if interpreter else find_program(request.words)
    workloads = _workloads(request, program)
    torch = _imports_torch(request.image(program.interpreter), progress)
    template = _basic_template(request, program, workloads)
    template = replace(template, torch=torch, environments=usable_environments(torch)[:_DRAFT_ENVIRONMENTS])
    text = _with_relative_paths(template, file).text()
    parse(text, file)
    return text


def _basic_template(request: ProgramRequest, program: ProgramCommand, workloads: Sequence[Workload]) -> MatrixTemplate:
    """Return the template of a program's matrix as far as it is known before a run."""
    place = request.place
    return MatrixTemplate(
        program.interpreter, workloads, False, usable_environments(False), requirements=request.requirements,
        modules=request.modules, image=place.image, engine=place.engine, gpus=place.gpus,
    )  # fmt: skip


def _imports_torch(image: Image, progress: ProgressCallback) -> bool:
    """Return whether a Python has PyTorch from pip; False for one that does not start on this machine."""
    code = "import sys; sys.path[:] = filter(None, sys.path); import torch"  # not of this folder, as a script would
    workload = _workload({"name": "torch", "command": ("python", "-c", code), "files": str(Path.cwd())})
    with tempfile.TemporaryDirectory(prefix="envmatrix-look-") as folder, suppress(EnvmatrixError):
        return _runs_torch(run_once(workload, image, _IMPORT_LIMIT_S, Path(folder) / "log", progress).record)
    return False


@contextmanager
def run_cleanup_on_failure(workloads: Iterable[Workload], progress: ProgressCallback) -> Iterator[None]:
    """Run the cleanup commands if something fails before the run starts; the run cleans up itself."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            interrupts.mark_handled()  # so that this signal does not interrupt the cleanup too
        run_cleanup(workloads, progress)
        raise


def write_new_file(file: Path, text: str) -> None:
    """Write a file that must not exist yet. Raises InputError."""
    try:
        with file.open("x", encoding="utf-8") as body:
            body.write(text)
    except FileExistsError as error:
        raise InputError("it already exists", where=Where(file), remedy="pass another file") from error
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=Where(file),
            remedy="pass a file in an existing folder that you may write to",
        ) from error


def _workloads(request: ProgramRequest, program: ProgramCommand) -> tuple[Workload, ...]:
    """Return a workload for every combination of the parameters' values."""
    stem = program_label(request.words)
    _check_parameters(request)
    variables = request.like.variables if request.like else {}
    place = request.place
    passed = tuple(
        sorted({*without_secrets_and_host_paths(_passed_variables(program), place), *request.pass_env} - set(variables))
    )
    outside = {"mounts": folders_to_mount(Path.cwd(), program.command, passed)} if place.image else {"home": "real"}
    workloads = []
    for values in itertools.product(*(values for _, values in request.parameters)):
        values_by_name = dict(zip((name for name, _ in request.parameters), values, strict=True))
        name = safe_name("-".join([stem, *(f"{key}-{value}" for key, value in values_by_name.items())]))
        hooks = {key: tuple(_fill_parameters(word, values_by_name) for word in getattr(request, key)) for key in _HOOKS}
        body = {
            "name": name,
            "command": tuple(_fill_parameters(word, values_by_name) for word in program.command),
            **outside,
            "pass_env": passed,
            "env": variables,
            **{key: argv for key, argv in hooks.items() if argv},
            **({"metric": {"json_file": request.metric_json, "better": "higher"}} if request.metric_json else {}),
        }
        workloads.append(_workload(body))
    if len({workload.name for workload in workloads}) < len(workloads):
        raise InputError(
            "--parameter-list: two values give the same name", remedy="make them differ in their letters or digits"
        )
    return tuple(workloads)


def _workload(body: Mapping[str, object]) -> Workload:
    try:
        return Workload.model_validate(body)
    except ValidationError as error:
        raise InputError(f"your program's command line: {validation_message(error.errors()[0])}") from error


def _check_parameters(request: ProgramRequest) -> None:
    text = " ".join([*request.words, *request.setup, *request.prepare, *request.cleanup])
    for name, _ in request.parameters:
        if f"{{{name}}}" not in text:
            raise InputError(
                f"--parameter-list: {{{name}}} does not occur in your program's command line", remedy="add it there"
            )


def _fill_parameters(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _passed_variables(program: ProgramCommand) -> tuple[str, ...]:
    """Return the shell variables to pass to a program: those it seems to read, and those that affect performance."""
    draft = _workload({"name": "draft", "command": program.command, "files": str(Path.cwd())})
    sources = [Path.cwd() / name for name in program_files(draft)]
    for script in scripts_outside(program.command, Path.cwd()):
        sources += [Path(script), *itertools.islice(Path(script).parent.glob("*.py"), 200)]
    own_variables = ("LD_PRELOAD", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED")
    fast = [name for name in os.environ if bench_options.is_always_recorded(name)]
    variables = {
        *likely_needed_variables(sources),
        *(name for name in fast if not name.startswith(("LC_", "BENCH_", "LANG", "TMPDIR"))),
    }
    return tuple(sorted({"PATH", *variables} - set(own_variables)))


def _check_place(request: ProgramRequest, template: MatrixTemplate, file: Path, progress: ProgressCallback) -> None:
    """Check that a program can run in its place, and report what its container sees."""
    draft = replace(template, requirements=())  # their files may be in another folder than the matrix
    check_place(parse(draft.text(), file), request.place, request.pass_env)
    if request.place.image:
        mounts = ", ".join(template.workloads[0].mounts)
        progress(f"mounted read-only at the same path: {mounts or 'nothing'}")


def _check_options(request: ProgramRequest, template: MatrixTemplate, overrides: Overrides, file: Path) -> None:
    """Raise InputError, before a long trial run, for options that no result of it could make right."""
    check_patterns(request.metric_regex, request.metric_steps)
    drafts = [
        replace(template, requirements=(), torch=torch, environments=usable_environments(torch))
        for torch in (False, True)
    ]
    for_any, for_torch = (parse(draft.text(), file) for draft in drafts)
    both = for_any.model_copy(update={"environments": {**for_any.environments, **for_torch.environments}})
    apply_overrides(both, "default", overrides)


def _run_program(
    workload: Workload, image: Image, times: int, progress: ProgressCallback, show: Callable[[str], None],
    place: ProgramPlace = IN_PLACE, outlook: Callable[[float], str] = lambda _: "",
) -> TrialRunResult:  # fmt: skip
    """Run a program ``times`` times (at least once) under the machine lock, and return the last result.

    ``outlook``: what to say while it runs, after so many seconds.
    """
    times = max(1, times)
    with (
        alone_on_machine(progress),
        tempfile.TemporaryDirectory(prefix="envmatrix-look-", ignore_cleanup_errors=True) as logs,
    ):
        orphans.end_processes()
        for number in range(1, times + 1):
            counter_text = f" ({number} of {times})" if times > 1 else ""
            progress(f"trial run: your program runs once, to see its time and output{counter_text}; Ctrl-C stops it")
            log = Path(logs) / f"{number}.log"
            last_run = run_once(workload, image, _TRIAL_RUN_LIMIT_S, log, progress, place.engine, place.gpus, outlook)
            show(last_run.output)
    return last_run


def _measured_template(
    template: MatrixTemplate,
    first_run: TrialRunResult,
    request: ProgramRequest,
    conflicts: Mapping[str, str],
    progress: ProgressCallback,
) -> MatrixTemplate:
    """Add to a template what a run of the program showed, with all usable environments, and report it."""
    first_workload, evidence = template.workloads[0], first_run.record.evidence or Evidence()
    if first_workload.metric:
        metric, why = first_workload.metric, "from --metric-json; higher is better"
    else:
        metric, why = choose_metric(
            request.metric_regex, request.metric_steps, first_run.output, first_run.wall_s, first_run.arrivals
        )
    for text in f"it took {first_run.wall_s:.1f} s; metric: {why}".split("\n"):
        progress(text)
    notes = *describe_conflicts(conflicts), *notices.preload_openmp_and_binding_problems(evidence)
    for text in (*describe_shell_variables(first_workload.pass_env), *notes):
        progress(f"note: {text}")
    for find in (notices.gpu_not_found_notice, notices.work_outside_timing_notices, notices.unverifiable_programs):
        for line in find(evidence):
            progress(f"warning: {line}")
    return replace(
        template,
        environments=[name for name in usable_environments(template.torch) if name not in conflicts],
        metric=metric,
        why=why.partition("\n")[0],
        trial_limit_s=max(60.0, 10 * first_run.wall_s),
        on_gpu=_gpu_process_count(first_run.record),
    )


def _drop_unused_levels(matrix: Matrix, overrides: Overrides) -> Matrix:
    """Return a matrix without the levels that no requested environment uses, as their libraries would be downloaded."""
    design = matrix.designs["default"]
    names = dict.fromkeys((design.baseline, *(overrides.environments or design.environments)))
    if not set(names) <= set(matrix.environments):
        return matrix  # the later error for the unknown name lists all environments
    kept_environments = {name: matrix.environments[name] for name in names}
    used_levels = {pair for entry in kept_environments.values() for pair in entry.levels.items()}
    kept = only_levels(matrix, lambda name, factor, level: level == factor.reference or (name, level) in used_levels)
    return kept.model_copy(update={"environments": kept_environments})


def _selection_text(environments: Sequence[str], *, torch: bool, record: Record) -> str:
    """Describe what is benchmarked, and why recipes are left out."""
    environments_text = f"environments: {', '.join(environments)}"
    evidence = record.evidence
    if torch:
        return environments_text
    if evidence and evidence.torch:
        library = (evidence.openmp and evidence.openmp.library) or "an OpenMP runtime that could not be detected"
        return f"{environments_text}. Its PyTorch uses {library}: the recipes for {_GNU_OPENMP} are left out"
    return f"{environments_text}. No PyTorch was detected in it: the recipes for PyTorch are left out"


def _with_relative_paths(starter: MatrixTemplate, file: Path) -> MatrixTemplate:
    """Return a starter with paths relative to the folder of ``file``."""
    matrix_folder = file.resolve().parent
    relative_paths = tuple(Path(os.path.relpath(entry.resolve(), matrix_folder)) for entry in starter.requirements)
    starter = replace(starter, requirements=relative_paths)
    if matrix_folder == Path.cwd().resolve():
        return starter
    folder = os.path.relpath(Path.cwd(), matrix_folder)
    return replace(starter, workloads=[entry.model_copy(update={"files": folder}) for entry in starter.workloads])


def _runs_torch(record: Record) -> bool:
    evidence = record.evidence
    return bool(evidence and evidence.torch and evidence.openmp and evidence.openmp.library == _GNU_OPENMP)


def _gpu_process_count(record: Record) -> int:
    evidence = record.evidence
    parts = [evidence, *(part.evidence for part in evidence.programs or ())] if evidence else []
    return sum(bool(part and part.cuda and part.cuda.used) for part in parts)
