"""Measure again what stored runs or matrices measured: both sides in one run, or the named causes of a difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envmatrix.api.matrix_and_run_lookup import Names, PathLike, find_run, matrix_of_run, parse_argument, split_names
from envmatrix.api.result import Result
from envmatrix.api.run_results import compare, explain
from envmatrix.api.runs import check_has_answer, find_run_and_record_reading, finish_run, line_progress_watch, place_run
from envmatrix.durations_and_sizes import parse_tolerance
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT
from envmatrix.matrix import Design, Factor, Matrix, load
from envmatrix.matrix.additions import only_levels, with_only_design, with_packaged_levels
from envmatrix.plan.environment import Environment, complete_levels, is_possible, library_for_level
from envmatrix.results import Run, RunFolder
from envmatrix.results.run_model import LauncherOptions
from envmatrix.stats.attribution.causes import levels_changed
from envmatrix.stats.attribution.explanation import Explanation, Wanted
from envmatrix.stats.comparisons.result import Comparison
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.experiment_setup import Experiment, create_experiment, find_design
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.overrides import Overrides, resolve_engine_names, with_changed_values
from envmatrix.trials.two_matrix_comparison import Side, check_comparable, two_side_design
from envmatrix.trials.user_program.file_digests import changed_file_texts, program_files

_NO_OVERRIDES, _DEFAULT_RUN = Overrides(), NewRun()


def rerun(
    old: PathLike | Result, new: PathLike | Result, design: str | None = None, *, name: str | None = None,
    environments: Names | None = None, workloads: Names | None = None, engines: Names | None = None,
    budget: float | str | None = None, max_blocks: int | None = None, allowed: float | str = 0.0,
    launcher: str = DEFAULT, launcher_options: LauncherOptions | None = None, progress: ProgressCallback = silent,
    results: PathLike = "results",
) -> Comparison:  # fmt: skip
    """Measure two matrices or runs again in the same blocks of one run, and compare old and new.

    Args:
        old: a matrix, a folder with a matrix.yaml (such as a worktree of another commit), or a run.
        new: the same for the newer side, whose design is used.
        design: name of a design of the newer one; None: 'default', or that of the run.
        name: of the run; None: design and time.
        environments: these, each with its own old side; None: only the baseline.
        workloads: only these, which must be the same on both sides; None: the design's.
        engines: where processes start; None: the design's.
        budget: stop after this time: seconds, or '90s', '10m', '2h'.
        max_blocks: stop after this many blocks.
        allowed: the accepted slow-down: 0.03 or '3%'.
        launcher: where trials run: 'here' or another launcher's name.
        launcher_options: its options, such as {'nodes': 2, 'time': '2h'}.
        progress: receives lines of progress.
        results: the folder for the run, in which runs are also searched by name.

    Returns:
        The Comparison, as from ``compare``. The run works with ``resume`` and ``load``.

    Raises:
        InputError: the two cannot be compared, or an argument is wrong.
        EngineError: an engine is missing or its build failed.
        NothingRanError: a side is not available on this machine, or no trial was ok.
        StoreError: the run's folder cannot be written.
        InterruptedRunError: Ctrl-C ended the run; the message shows how to resume.

    """
    limit = parse_argument("allowed", allowed, parse_tolerance)
    overrides = Overrides(
        budget=budget, max_blocks=max_blocks, workloads=split_names(workloads), environments=split_names(environments)
    )
    old_path, new_path = (side.folder if isinstance(side, Result) else side for side in (old, new))
    command = ("envmatrix.rerun", str(old_path), str(new_path))
    new_run = NewRun(results, name, launcher, launcher_options or {}, command, progress=progress)
    experiment = begin_rerun(old_path, new_path, design, overrides, new_run, engines=split_names(engines) or ())
    result = finish_run(experiment, line_progress_watch(progress))
    check_has_answer(result, f"envmatrix compare {result.name}")
    return compare(result, allowed=limit)


def begin_rerun(
    old: PathLike,
    new: PathLike,
    design: str | None = None,
    overrides: Overrides = _NO_OVERRIDES,
    new_run: NewRun = _DEFAULT_RUN,
    *,
    engines: Sequence[str] = (),
) -> Experiment:
    """Prepare the environments of both sides and write run.json; nothing is measured yet.

    ``old`` and ``new`` are each a matrix, a folder with a matrix.yaml (such as a worktree of another commit), or a run.
    The design is the new side's, with its baseline or the requested environments. Raises InputError if the sides cannot
    be compared, and the errors of ``envmatrix.run``.
    """
    sides = (load_side("old", old, new_run.results), load_side("new", new, new_run.results))
    selected_design = _choose_design(sides[1], design, overrides)
    check_comparable(sides, selected_design)
    names = resolve_engine_names(selected_design, engines, new_run.progress)
    matrix = sides[1].matrix
    for workload_name in (name for name in selected_design.workloads if matrix.workloads[name].command):
        new_run.progress(
            f"workload {workload_name}: both sides run the program next to "
            f"{matrix.path}{_changed_files_text(sides, workload_name)}"
        )
    selected_design, host = place_run(matrix, selected_design, names, new_run)
    return create_experiment(matrix, selected_design, names, new_run, host, sides=sides)


def _choose_design(side: Side, name: str | None, overrides: Overrides) -> Design:
    run_design = side.run.design if side.run and name is None else None
    base_design = run_design or find_design(side.matrix, name or "default")
    limits = {key: value for key, value in vars(overrides).items() if key != "environments"}
    return two_side_design(with_changed_values(base_design, limits), overrides.environments)


def _changed_files_text(sides: Sequence[Side], workload: str) -> str:
    """Return a note on program files that differ between the sides, whose effect is not measured; '' if none."""
    old_files, new_files = (_program_digests(side, workload) for side in sides)
    names = (
        sorted(name for name in {*old_files, *new_files} if old_files.get(name) != new_files.get(name))
        if old_files
        else []
    )
    if not names:
        return ""
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"; changes of the program ({listed}) are not measured: see `envmatrix docs gate`, The program itself"


def _program_digests(side: Side, workload: str) -> dict[str, str]:
    entry = side.matrix.workloads[workload]
    folder = Path(side.matrix.path).resolve().parent / (entry.files or ".")
    return program_files(entry.model_copy(update={"files": str(folder)}))


def load_side(name: str, source: PathLike, results: PathLike = "results") -> Side:
    """Return the side that one word of ``compare --rerun`` means. Raises InputError if it is no matrix or run."""
    path = Path(source)
    if path.is_file():
        return Side(name, load(path))
    if (path / "matrix.yaml").is_file() and not (path / "run.json").exists():
        return Side(name, load(path / "matrix.yaml"))
    try:
        folder = find_run(source, results)
    except InputError as error:
        message = f"{str(source)!r} is not a matrix, a run, or a folder with a matrix.yaml"
        raise InputError(message, remedy=error.remedy) from error
    return _side_of_run(name, folder)


def _side_of_run(name: str, folder: RunFolder) -> Side:
    run = folder.load_for_resume()
    if run.sides:
        remedy = f"pass one of its sides: {folder.path / 'sides' / name}"
        raise InputError(f"run {run.name} itself compares two matrices", remedy=remedy)
    file = folder.matrix_file if folder.matrix_file.exists() else folder.run_file
    return Side(name, matrix_of_run(folder, run), file, run)


def begin_cause_confirmation(
    run: PathLike | Result | None,
    environment: str | None,
    new_run: NewRun,
    *,
    budget: float | str | None = None,
    max_blocks: int | None = None,
) -> tuple[Experiment, tuple[Wanted, ...]]:
    """Prepare a run that confirms the named causes of a stored run; nothing is measured yet.

    It has the stored run's workloads, engines, launcher and images; ``new_run`` has its results folder and command, to
    which the matrix is added, so that ``resume`` finds it. Raises InputError if there is nothing to confirm, or if the
    stored run cannot be repeated on this machine; otherwise the errors of ``envmatrix.run``.
    """
    folder = find_run_and_record_reading(run, new_run.results)
    stored = folder.load_for_resume()
    explanations, unexplained = explain(folder.path, environment)
    matrix = _confirmation_matrix(folder, stored, explanations)
    wanted, reasons = _interventions(explanations, stored, matrix)
    if not wanted:
        raise InputError(
            _nothing_to_confirm_text(folder.path.name, {**unexplained, **reasons}),
            remedy="`envmatrix docs why` lists the causes that can be confirmed; more blocks may name one: "
            f"`envmatrix resume {folder.path.name}`",
        )
    references = sorted({cause.reference for cause in wanted})
    if len(references) > 1:
        raise InputError(
            f"the causes have different references ({', '.join(references)}), and one run has one",
            remedy=f"name an environment: envmatrix explain {folder.path.name} {wanted[0].arm.environment} --confirm",
        )
    _check_repeatable(stored, new_run.progress)
    for name, reason in reasons.items():
        new_run.progress(f"not confirmed here: {name}: {reason}")
    design = _confirmation_design(stored, wanted, {"budget": budget, "max_blocks": max_blocks})
    matrix = _with_environments(matrix, stored, wanted, design)
    new_run = replace(
        new_run,
        name=f"{stored.name}-confirm",
        launcher=stored.launcher,
        launcher_options=stored.launcher_options,
        command=(*new_run.command, "--matrix", matrix.path),
    )
    design, host = place_run(matrix, design, design.engines, new_run)
    sides = (Side(None, matrix, run=stored),)
    return create_experiment(matrix, design, design.engines, new_run, host, sides=sides), wanted


def _check_repeatable(run: Run, progress: ProgressCallback) -> None:
    """Raise InputError if this machine or a program is not that of a stored run; report edited programs."""
    here = this_host()
    processors = ("processor", run.host.cpu_model, here.cpu_model)
    facts = (processors, ("CPUs", len(run.host.cpus), len(here.cpus)))
    differs = [f"{label} {before}, here {now}" for label, before, now in facts if before not in (None, now)]
    if run.launcher == DEFAULT and differs:
        raise InputError(
            f"run {run.name} was measured on another machine: {'; '.join(differs)}",
            remedy="use that machine, or measure here first: `envmatrix bench`",
        )
    for name, workload in run.workloads.items():
        if workload.command and not Path(workload.files or "").is_dir():
            raise InputError(
                f"the program of workload {name!r} is gone: no folder {workload.files}",
                remedy="restore it, or measure again: `envmatrix bench`",
            )
        changed = changed_file_texts(workload, run.programs.get(name, {}))
        deleted = [text for text in changed if "was deleted" in text]
        if deleted:
            raise InputError(
                f"the program of workload {name!r} is incomplete: {deleted[0].partition(' was ')[0]} was deleted",
                remedy=f"restore it in {workload.files}",
            )
        for text in changed:
            progress(f"warning: {text.partition(':')[0]}: its present version is measured")


def _confirmation_matrix(folder: RunFolder, run: Run, explanations: Iterable[Explanation]) -> Matrix:
    """Return the matrix of a run with the run's workloads, and all levels that may confirm a cause."""
    if run.sides:
        raise InputError(
            f"run {run.name} compares two matrices, which cannot be confirmed together",
            remedy="measure one of them: `envmatrix bench`",
        )
    rules = [finding.rule for explanation in explanations for finding in explanation.findings]
    levels = [level for rule in rules for level in (rule.less, rule.more) if level is not None]
    matrix = with_packaged_levels(matrix_of_run(folder, run), levels)
    held = {library.key for library in run.libraries}

    def is_held(_name: str, factor: Factor, level: str) -> bool:
        library = library_for_level(matrix, factor, level)
        return library is None or library.key in held

    return only_levels(matrix, is_held).model_copy(update={"workloads": {**matrix.workloads, **run.workloads}})


def _interventions(
    explanations: Iterable[Explanation], run: Run, matrix: Matrix
) -> tuple[tuple[Wanted, ...], dict[str, str]]:
    """Return the causes that can be confirmed, and by environment why others cannot."""
    wanted, reasons = [], {}
    arms = {arm.name: arm for arm in run.arms}
    for explanation in explanations:
        arm = explanation.parts.arm
        reference_arm = arms[explanation.parts.together.reference]
        reference, environment = run.environments[reference_arm.runs], run.environments[arm.runs]
        if not explanation.findings:
            reasons[arm.shown] = "no cause of its difference is named"
        for finding in explanation.findings:
            levels = finding.rule.interventions(environment, reference, slower=explanation.parts.whole.mean > 0)
            own = _own_levels(reference)  # some levels need another OpenMP runtime than the reference's
            level = next((level for level in levels if is_possible(matrix, {**own, level[0]: level[1]})), None)
            if reference_arm.engine != arm.engine or level is None:
                reasons[arm.shown] = f"no level changes only this: {finding.rule.name}"
            elif levels_changed(environment, reference) == dict([level]):
                reasons[arm.shown] = f"it changes only this itself: {finding.rule.name}"
            else:
                by = _environment_name(matrix, reference, level)
                wanted.append(Wanted(arm, reference.name, explanation.per, finding.rule, by, level))
    return tuple(wanted), reasons


def _own_levels(environment: Environment) -> dict[str, str]:
    return dict(environment.levels if environment.own_levels is None else environment.own_levels)


def _environment_name(matrix: Matrix, reference: Environment, level: tuple[str, str]) -> str:
    """Return the matrix's name for the reference with this level, or a new one."""
    own = {**_own_levels(reference), level[0]: level[1]}
    levels = complete_levels(matrix, own, reference.name)
    for name, entry in matrix.environments.items():
        if complete_levels(matrix, entry.levels, name) == levels:
            return name
    return f"{reference.name}+{level[0]}-{level[1]}"


def _nothing_to_confirm_text(name: str, reasons: dict[str, str]) -> str:
    reasons_text = "; ".join(f"{environment}: {reason}" for environment, reason in list(reasons.items())[:4])
    return f"run {name} has nothing to confirm" + (
        f": {reasons_text}" if reasons_text else ", because it compares nothing"
    )


def _confirmation_design(run: Run, wanted: Sequence[Wanted], limits: Mapping[str, object]) -> Design:
    """Return the stored run's design for the reference, the explained environments and those that confirm."""
    names = [wanted[0].reference, *(name for cause in wanted for name in (cause.arm.environment, cause.by))]
    design = two_side_design(with_changed_values(run.design, limits), names)
    workloads = tuple(dict.fromkeys(cause.arm.workload for cause in wanted))
    engines = tuple(dict.fromkeys(cause.arm.engine for cause in wanted))
    return design.model_copy(update={"steady": False, "workloads": workloads, "engines": engines})


def _with_environments(matrix: Matrix, run: Run, wanted: Sequence[Wanted], design: Design) -> Matrix:
    """Return the matrix with the environments that it lacks: those that confirm, and cells of a factorial design."""
    reference = _own_levels(run.environments[wanted[0].reference])
    added = {cause.by: {**reference, cause.level[0]: cause.level[1]} for cause in wanted}
    measured = {name: _own_levels(run.environments[name]) for name in design.environments if name in run.environments}
    lacking = {name: levels for name, levels in {**added, **measured}.items() if name not in matrix.environments}
    names = {"environments": list(design.environments), "workloads": list(design.workloads)}
    entry = {"baseline": design.baseline, **names}
    return with_only_design(matrix, design.name, entry, lacking).model_copy(update={"factors": matrix.factors})
