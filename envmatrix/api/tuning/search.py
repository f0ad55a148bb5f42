"""Search the best environment for a program within a budget, and confirm it; resumable from its trials."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from envmatrix.api.atlas import known_search_effects, read_named_or_local_atlas
from envmatrix.api.matrix_and_run_lookup import Names, PathLike, load_matrix, matrix_of_run, parse_argument, split_names
from envmatrix.api.runs import place_run
from envmatrix.api.tuning.space import SearchRequest, make_default_space
from envmatrix.api.user_program.matrix_for_program import run_cleanup_on_failure, run_program_and_draft_matrix
from envmatrix.api.user_program.program_options import ProgramRequest, make_place
from envmatrix.block import interrupts
from envmatrix.durations_and_sizes import parse_duration
from envmatrix.errors import ExitCode, InputError, StoppedRunError, StoreError, Where
from envmatrix.launchers.catalog import DEFAULT, LAUNCHERS
from envmatrix.matrix import Design, Matrix
from envmatrix.results.run_model import LauncherOptions
from envmatrix.runner.loop import RunEnding
from envmatrix.search.answer import TuneAnswer, make_answer
from envmatrix.search.loop import RunningSearch, Watch, announce, check_budget, minimum_time_s, run_search, watch_step
from envmatrix.search.next_trials import Search
from envmatrix.search.optuna_sampler import check_sampler
from envmatrix.search.report import answer_lines, subject_text, to_html, to_json
from envmatrix.search.space import design_levels, select_factors
from envmatrix.search.step_results import Step, read_step
from envmatrix.search.study_folder import Place, Study, StudyFolder, make_search
from envmatrix.stats.steady_state.effect import SteadyEffect
from envmatrix.system.atomic_files import read_text, retry_writes, write_whole
from envmatrix.system.bench_options import node_count
from envmatrix.system.json_parsing import parse_json
from envmatrix.system.printable import html_lines
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.execution import measured_export_lines
from envmatrix.trials.experiment_setup import find_design, reopen_experiment
from envmatrix.trials.overrides import Overrides, resolve_engine_names
from envmatrix.trials.user_program.hooks import setup_and_cleanup
from envmatrix.version import __version__

#: Default budget (seconds), if that is enough to confirm anything.
_DEFAULT_BUDGET_S = 1200.0
_TARGET_WIDTH = 0.01
_RECIPE_FILE = "recipe.sh"
#: The answer of a search, written at its end.
_ANSWER_FILE = "tune.json"


@dataclass(frozen=True)
class TuneResult:
    """Search on disk: study.json, tune.json, report.html, a run per step. ``interrupted``: ``resume`` continues it."""

    folder: Path
    interrupted: bool = False

    @cached_property
    def _search_and_steps(self) -> tuple[Search, list[Step]]:
        folder = StudyFolder(self.folder)
        study = folder.load()
        steps = folder.steps()
        search = make_search(_study_matrix(folder), study, steps[0].load().host if steps else None)
        return search, [read_step(step, search.space) for step in steps]

    @cached_property
    def answer(self) -> TuneAnswer:
        """The answer of the search. Raises StoreError if the folder cannot be read."""
        return make_answer(*self._search_and_steps, StudyFolder(self.folder).sessions(), interrupted=self.interrupted)

    @property
    def name(self) -> str:
        """Name of the search."""
        return self.folder.name

    @property
    def settings(self) -> Mapping[str, str]:
        """Factor -> level of the recommended recipe; {} if nothing is significantly faster than the baseline."""
        return self.answer.settings

    @property
    def ratio(self) -> float | None:
        """The speed-up of the confirmed recipe over the baseline, on fresh blocks (None: none was confirmed)."""
        return self.answer.effect.ratio if self.answer.effect else None

    @property
    def gain(self) -> float | None:
        """``ratio`` as in the headline: corrected for being reported only if its interval is above 1."""
        return self.answer.gain

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``ratio``."""
        effect = self.answer.effect
        return (effect.low, effect.high) if effect and effect.low is not None and effect.high is not None else None

    @property
    def steady(self) -> SteadyEffect | None:
        """The effect of the confirmed recipe in later steps, with its interval and seconds (None: none was measured).

        ``gain`` is of these steps if the recipe is faster in them.
        """
        return self.answer.steady

    @property
    def lines(self) -> str:
        """The shell lines that set up the recommended recipe, '' if nothing is recommended."""
        file = self.folder / _RECIPE_FILE
        return file.read_text(encoding="utf-8") if self.settings and file.exists() else ""

    def _repr_html_(self) -> str:
        """Return the answer for a notebook."""
        return html_lines(answer_lines(self.answer))

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of ``envmatrix tune``: 4 if no candidate ever ran successfully."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.FINE if self.answer.ran_well else ExitCode.NOTHING_RAN

    def resume(self, *, budget: float | str | None = None, progress: ProgressCallback = silent) -> TuneResult:
        """Continue a stopped search, or give its confirmation more time. Arguments and errors: ``tune``."""
        return finish_search(
            resume_study(self.folder, budget, progress), partial(watch_step, quiet=False, tell=progress)
        )

    def to_json(self) -> dict[str, object]:
        """Return the answer in the format of tune.json."""
        return to_json(self.name, self.answer, self.lines)

    def write(self) -> None:
        """Write tune.json and report.html."""
        write_whole(self.folder / _ANSWER_FILE, json.dumps(self.to_json(), indent=1) + "\n")
        folder = StudyFolder(self.folder)
        subject = subject_text(folder.load(), folder.steps()[0].load())
        page = to_html(self.name, self.answer, *self._search_and_steps, self.lines, subject)
        write_whole(self.folder / "report.html", page)

    def __str__(self) -> str:
        return "\n".join(answer_lines(self.answer))


def tune(
    program: str | Sequence[str], *, budget: float | str | None = None, factors: Names | None = None,
    engine: str | None = None, matrix: PathLike | None = None, name: str | None = None, results: PathLike = "results",
    metric_regex: str = "", metric_json: str = "", launcher: str = DEFAULT,
    launcher_options: LauncherOptions | None = None, sampler: str = "", metric_steps: str = "",
    image: str = "", atlas: PathLike | None = None, progress: ProgressCallback = silent,
) -> TuneResult:  # fmt: skip
    """Search the best environment for a program within a budget, and confirm its gain on fresh blocks.

    Args:
        program: a command line as a list of words, or the name of a design of a matrix.
        budget: time of all trials: seconds, or '90s', '20m', '2h'; None: 20 minutes, or more if needed.
        factors: only these are searched, as names or 'a,b'; None: all setting factors, or the design's.
        engine: where processes start; None: here ('local'), or the design's first one.
        matrix: the matrix with the design; None: ./matrix.yaml, otherwise the built-in one.
        name: of the search; None: the program and the time.
        results: the folder in which the folder of the search is created.
        metric_regex: the program's speed: a number in ( ) in its output; '': chosen as ``envmatrix bench`` does.
        metric_json: the program's speed: FILE:KEY of a JSON file that it writes.
        launcher: runs trials in parallel on its nodes: 'here' or another launcher's name.
        launcher_options: its options, such as {'nodes': 4}.
        sampler: Optuna's 'tpe', 'nsga2' or 'random', to propose candidates to screen; '': the built-in model.
        metric_steps: the program's speed: a pattern of the lines that it prints at each step.
        image: the ready image that a program runs in, with ``engine`` 'docker', 'podman', ...; '': its own Python.
        atlas: whose known effects order the candidates; None: ./atlas, if it exists.
        progress: receives lines of progress; ``print`` shows them.

    Returns:
        The TuneResult, with its report written into its folder.

    Raises:
        InputError: an argument is wrong, the space is empty, or the budget is too small to confirm anything.
        EngineError: an engine is missing or its build failed.
        NothingRanError: the program or the baseline fails.
        StoreError: the folder cannot be written.

    """
    watch = partial(watch_step, quiet=False, tell=progress)
    request = SearchRequest(
        results, name, launcher, launcher_options or {}, progress=progress, budget=budget,
        factors=split_names(factors), sampler=sampler, atlas=read_named_or_local_atlas(atlas, progress),
    )  # fmt: skip
    if isinstance(program, str):
        return finish_search(begin_design_search(program, request, engine, matrix), watch)
    place = make_place([engine] if engine else (), image, launcher, request.launcher_options, progress)
    own_program = ProgramRequest(
        tuple(program), metric_regex=metric_regex, metric_json=metric_json, metric_steps=metric_steps, place=place
    )
    return finish_search(begin_program_search(own_program, request, lambda _: None), watch, is_set_up=True)


def begin_program_search(program: ProgramRequest, request: SearchRequest, show: Callable[[str], None]) -> RunningSearch:
    """Run a program once, and create the study of its default space. Raises the errors of ``tune``."""
    file = Path("matrix.yaml")
    generated = run_program_and_draft_matrix(program, Overrides(), file, _without_plan_lines(request.progress), show)
    with run_cleanup_on_failure(generated.matrix.workloads.values(), request.progress):
        matrix, levels = make_default_space(generated, file)
        design = matrix.designs["default"].model_copy(update={"target": _TARGET_WIDTH})
        place = None
        if program.place.is_on_other_machines:
            design, place = _place_search(matrix, design, request)
        recipes = tuple(name for name in matrix.environments if name != design.baseline)
        study = _study(f"tune-{generated.name}", request, design, levels, recipes, place, generated.took_s)
        return _begin_search(study, matrix, request)


def begin_design_search(
    design: str, request: SearchRequest, engine: str | None = None, matrix: PathLike | None = None
) -> RunningSearch:
    """Create the study of a design: its factors, or the levels of its environments. Raises the errors of ``tune``."""
    whole = load_matrix(matrix, request.progress)
    chosen = find_design(whole, design)
    if len(chosen.workloads) != 1:
        raise InputError(
            f"design {design!r} has {len(chosen.workloads)} workloads; a search finds the best environment for one",
            remedy="tune a design with one workload",
        )
    engines = resolve_engine_names(chosen, [engine] if engine else None, request.progress)
    chosen = chosen.model_copy(update={"engines": engines[:1], "target": _TARGET_WIDTH, "race": False})
    chosen, place = _place_search(whole, chosen, request)
    name = f"tune-{design}-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}"
    study = _study(name, request, chosen, design_levels(whole, chosen), chosen.environments, place)
    return _begin_search(study, whole, request)


def _place_search(matrix: Matrix, design: Design, request: SearchRequest) -> tuple[Design, Place]:
    """Return the design adapted to the launcher, and where it runs. Raises InputError if that is impossible."""
    design, host = place_run(matrix, design, design.engines, request)
    span = node_count(matrix.workloads[design.workloads[0]].options)
    width = LAUNCHERS.make(request.launcher).width(design, request.launcher_options, span)
    return design, Place(launcher=request.launcher, options=request.launcher_options, width=width, host=host)


def resume_study(
    folder: Path, budget: float | str | None, progress: ProgressCallback, matrix: PathLike | None = None
) -> RunningSearch:
    """Load a stopped search to continue it; ``budget`` is a new one for the whole search.

    ``matrix``: whose locks are used (None: the original ones). A longer budget adds blocks to a confirmation that has
    ended.
    """
    study_folder = StudyFolder(folder)
    study = study_folder.load()
    if budget is not None:
        study = study.model_copy(update={"budget": parse_argument("--budget", budget, parse_duration), "asked": True})
    whole = _study_matrix(study_folder, matrix)
    return RunningSearch(study_folder, study, whole, make_search(whole, study), progress)


def find_study(name: PathLike | None, results: PathLike = "results") -> Path | None:
    """Return the folder of a search by its path or name, or None.

    Without a name: the newest search, but None if a run is newer.
    """
    if name is None:
        candidates = [*Path(results).glob("*/study.json"), *Path(results).glob("*/run.json")]
        newest = max(candidates, key=lambda file: file.stat().st_mtime, default=None)
        return newest.parent if newest and newest.name == "study.json" else None
    return next((path for path in (Path(name), Path(results) / name) if (path / "study.json").exists()), None)


def finish_search(tuning: RunningSearch, watch: Watch, *, is_set_up: bool = False) -> TuneResult:
    """Run a search until it ends or is interrupted, and write its result."""
    workloads = [tuning.matrix.workloads[name] for name in tuning.study.design.workloads]
    tuning.folder.lock()
    try:
        tuning.begin_session(time.time())
        with retry_writes(tuning.progress), setup_and_cleanup(workloads, tuning.progress, is_set_up=is_set_up):
            ending = _search_until_end(tuning, watch)
    except StoreError as error:
        prefix = f"{error.remedy}; " if error.remedy else ""
        remedy = f"{prefix}`envmatrix resume {tuning.study.name}` continues; no finished trial is lost"
        raise StoppedRunError(f"{error.message}; the search was stopped", where=error.where, remedy=remedy) from error
    finally:
        tuning.folder.unlock()
    result = TuneResult(tuning.folder.path, interrupted=ending is not None)
    if steps := tuning.folder.steps():
        if result.settings:
            experiment = reopen_experiment(steps[-1], Path(tuning.matrix.path), silent)
            lines = measured_export_lines(experiment, experiment.plan.arms[-1])
            write_whole(result.folder / _RECIPE_FILE, lines + "\n")
        else:  # the recommendation of a shorter budget no longer applies
            (result.folder / _RECIPE_FILE).unlink(missing_ok=True)
        result.write()
    return result


def _search_until_end(tuning: RunningSearch, watch: Watch) -> RunEnding | None:
    """Run a search; Ctrl-C between two of its steps has the same effect as Ctrl-C within one."""
    try:
        return run_search(tuning, watch, engine=tuning.study.design.engines[0])
    except KeyboardInterrupt:
        if not tuning.folder.steps():
            raise  # no step exists that could be resumed
        interrupts.mark_handled()
        return RunEnding("interrupted", interrupted=True)


def _study(
    name: str, request: SearchRequest, design: Design, levels: Mapping[str, tuple[str, ...]], recipes: tuple[str, ...],
    place: Place | None, trial_s: float | None = None,
) -> Study:  # fmt: skip
    """Return the study of a new search, with the default budget. ``recipes``: environments with a name of their own."""
    return Study(
        name=request.name or name,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        envmatrix=__version__,
        design=design,
        budget=_DEFAULT_BUDGET_S,
        factors=select_factors(levels, request.factors),
        named=recipes,
        trial_s=trial_s,
        place=place,
        sampler=request.sampler,
        asked=request.budget is not None,
    )


def _begin_search(study: Study, matrix: Matrix, request: SearchRequest) -> RunningSearch:
    """Create the folder of a study, after its order and its budget are decided."""
    if study.sampler:
        check_sampler(study.sampler)
    folder = StudyFolder(Path(request.results) / study.name)
    if folder.path.exists() and not folder.has_no_steps:
        remedy = "pass another --name, or continue it: `envmatrix resume`"
        raise InputError("it already exists", where=Where(folder.path), remedy=remedy)
    known = known_search_effects(
        request.atlas, matrix, study.design, study.factors, request.progress, is_elsewhere=request.launcher != DEFAULT
    )
    study = study.model_copy(update={"known": known})
    search = make_search(matrix, study)
    budget_s = max(_DEFAULT_BUDGET_S, minimum_time_s(search, study.trial_s or 0.0))
    if request.budget is not None:
        budget_s = parse_argument("--budget", request.budget, parse_duration)
    if study.trial_s is not None:
        check_budget(search, budget_s, study.trial_s)
    study = study.model_copy(update={"budget": budget_s})
    announce(search, study, request.progress)
    folder.create(study)
    return RunningSearch(folder, study, matrix, search, request.progress)


def _study_matrix(folder: StudyFolder, beside: PathLike | None = None) -> Matrix:
    """Return the matrix that the first step of a study stored. ``beside``: a matrix next to its locks."""
    steps = folder.steps()
    if not steps:
        remedy = "run its original command again: the search starts over under the same name"
        raise InputError("this search has not run anything yet", where=Where(folder.path), remedy=remedy)
    run = steps[0].load_for_resume()
    matrix = matrix_of_run(steps[0], run, beside)
    return matrix.model_copy(update={"workloads": {**matrix.workloads, **run.workloads}})


def report_study(folder: Path) -> TuneResult:
    """Rewrite tune.json and report.html of a search from its trials, and return its result.

    An unfinished search is reported as interrupted, without a conclusion. Raises InputError if none of it was run yet,
    StoreError if its folder cannot be read or written.
    """
    result = TuneResult(folder)
    if not _is_finished(result):
        result = TuneResult(folder, interrupted=True)
    result.write()
    return result


def _is_finished(result: TuneResult) -> bool:
    """Return whether a search is finished: its tune.json counts the same trials as are on disk now."""
    file = result.folder / _ANSWER_FILE
    document = parse_json(read_text(file), file) if file.exists() else None
    if not isinstance(document, dict) or document.get("interrupted"):
        return False
    return document.get("trials") == dict(result.answer.phases)


def _without_plan_lines(progress: ProgressCallback) -> ProgressCallback:
    """Return a callback without the lines on a benchmark's plan, which do not apply to a search."""

    def tell(line: str) -> None:
        if not line.startswith(("environments:", "6 blocks of ", "one block takes")):
            progress(line.partition("; a verdict needs")[0])

    return tell
