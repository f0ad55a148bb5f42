"""Confirm the named causes of a run: measure environments that change only one cause, in the same blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envmatrix.api.answers import explain
from envmatrix.api.places import PathLike, matrix_of_run
from envmatrix.api.result import Result
from envmatrix.api.runs import find_run_to_read, place_run
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT
from envmatrix.matrix import Design, Factor, Matrix
from envmatrix.matrix.override import only_levels, with_design, with_levels
from envmatrix.plan.environment import Environment, complete_levels, is_possible, library_for_level
from envmatrix.results import Run, RunFolder
from envmatrix.stats.attribution.causes import levels_changed
from envmatrix.stats.attribution.explanation import Explanation, Wanted
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.comparison_sides import Side, side_design
from envmatrix.trials.experiment import Experiment, create_experiment
from envmatrix.trials.new_run import NewRun
from envmatrix.trials.overrides import with_changed_values
from envmatrix.trials.program.files import changed_file_texts


def begin_confirmation(
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
    folder = find_run_to_read(run, new_run.results)
    stored = folder.load_for_resume()
    explanations, unexplained = explain(folder.path, environment)
    matrix = _matrix_of(folder, stored, explanations)
    wanted, reasons = _interventions(explanations, stored, matrix)
    if not wanted:
        raise InputError(
            _nothing_text(folder.path.name, {**unexplained, **reasons}),
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
    design = _design(stored, wanted, {"budget": budget, "max_blocks": max_blocks})
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


def _matrix_of(folder: RunFolder, run: Run, explanations: Iterable[Explanation]) -> Matrix:
    """Return the matrix of a run with the run's workloads, and all levels that may confirm a cause."""
    if run.sides:
        raise InputError(
            f"run {run.name} compares two matrices, which cannot be confirmed together",
            remedy="measure one of them: `envmatrix bench`",
        )
    rules = [finding.rule for explanation in explanations for finding in explanation.findings]
    levels = [level for rule in rules for level in (rule.less, rule.more) if level is not None]
    matrix = with_levels(matrix_of_run(folder, run), levels)
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
            own = _levels(reference)  # some levels need another OpenMP runtime than the reference's
            level = next((level for level in levels if is_possible(matrix, {**own, level[0]: level[1]})), None)
            if reference_arm.engine != arm.engine or level is None:
                reasons[arm.shown] = f"no level changes only this: {finding.rule.name}"
            elif levels_changed(environment, reference) == dict([level]):
                reasons[arm.shown] = f"it changes only this itself: {finding.rule.name}"
            else:
                by = _name_of(matrix, reference, level)
                wanted.append(Wanted(arm, reference.name, explanation.per, finding.rule, by, level))
    return tuple(wanted), reasons


def _levels(environment: Environment) -> dict[str, str]:
    return dict(environment.levels if environment.own_levels is None else environment.own_levels)


def _name_of(matrix: Matrix, reference: Environment, level: tuple[str, str]) -> str:
    """Return the matrix's name for the reference with this level, or a new one."""
    own = {**_levels(reference), level[0]: level[1]}
    levels = complete_levels(matrix, own, reference.name)
    for name, entry in matrix.environments.items():
        if complete_levels(matrix, entry.levels, name) == levels:
            return name
    return f"{reference.name}+{level[0]}-{level[1]}"


def _nothing_text(name: str, reasons: dict[str, str]) -> str:
    reasons_text = "; ".join(f"{environment}: {reason}" for environment, reason in list(reasons.items())[:4])
    return f"run {name} has nothing to confirm" + (
        f": {reasons_text}" if reasons_text else ", because it compares nothing"
    )


def _design(run: Run, wanted: Sequence[Wanted], limits: Mapping[str, object]) -> Design:
    """Return the stored run's design for the reference, the explained environments and those that confirm."""
    names = [wanted[0].reference, *(name for cause in wanted for name in (cause.arm.environment, cause.by))]
    design = side_design(with_changed_values(run.design, limits), names)
    workloads = tuple(dict.fromkeys(cause.arm.workload for cause in wanted))
    engines = tuple(dict.fromkeys(cause.arm.engine for cause in wanted))
    return design.model_copy(update={"steady": False, "workloads": workloads, "engines": engines})


def _with_environments(matrix: Matrix, run: Run, wanted: Sequence[Wanted], design: Design) -> Matrix:
    """Return the matrix with the environments that it lacks: those that confirm, and cells of a factorial design."""
    reference = _levels(run.environments[wanted[0].reference])
    added = {cause.by: {**reference, cause.level[0]: cause.level[1]} for cause in wanted}
    measured = {name: _levels(run.environments[name]) for name in design.environments if name in run.environments}
    lacking = {name: levels for name, levels in {**added, **measured}.items() if name not in matrix.environments}
    names = {"environments": list(design.environments), "workloads": list(design.workloads)}
    entry = {"baseline": design.baseline, **names}
    return with_design(matrix, design.name, entry, lacking).model_copy(update={"factors": matrix.factors})
