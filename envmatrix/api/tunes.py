"""The best environment for a program, searched and confirmed within a budget; everything is resumed from its trials."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from envmatrix.api.places import Names, PathLike, fraction, load_matrix, matrix_of_run, split_names
from envmatrix.api.programs import Asked as AskedProgram
from envmatrix.api.programs import cleaned_up_on_failure, make_matrix
from envmatrix.api.runs import place
from envmatrix.api.usual_space import usual_space
from envmatrix.block import interrupts
from envmatrix.errors import ExitCode, InputError, StoppedRunError, StoreError, Where, suggestion
from envmatrix.launchers.catalog import DEFAULT, LAUNCHERS, scheduled
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import NAME
from envmatrix.plan.environment import resolve
from envmatrix.plan.export import export_lines
from envmatrix.results.run import Asked
from envmatrix.runner.loop import Ended
from envmatrix.search.answer import TuneAnswer, answer
from envmatrix.search.loop import Tuning, Watch, announce, check_budget, least_s, search_on
from envmatrix.search.optuna_sampler import check_sampler
from envmatrix.search.progress import watch_step
from envmatrix.search.report import lines_of, subject_of, to_html, to_json
from envmatrix.search.search import Search
from envmatrix.search.space import space_of
from envmatrix.search.steps import Step, read_step
from envmatrix.search.study import Place, Study, StudyFolder
from envmatrix.system.atomic_files import write_whole
from envmatrix.system.bench_options import nodes_of
from envmatrix.system.host import Host, this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.write_retry import patient
from envmatrix.trials.experiment import Experiment, find_design, reopen
from envmatrix.trials.hooks import around
from envmatrix.trials.overrides import Overrides, requested_engines
from envmatrix.trials.trial import preload_paths
from envmatrix.units import parse_duration
from envmatrix.version import __version__

#: What is spent unless a budget is given, as long as that can confirm anything (seconds).
_USUAL_BUDGET_S = 1200.0
_TARGET = 0.01
_RECIPE = "recipe.sh"
#: What a search told at its end.
TOLD = "tune.json"
#: How a program of one's own gets to other machines.
PROGRAM_ELSEWHERE = "`envmatrix bench --save -- PROGRAM` writes a matrix for it; tune its design there"


@dataclass(frozen=True)
class TuneResult:
    """A search on disk and what it found. ``folder`` holds study.json, tune.json, report.html and a run for each step.

    ``interrupted``: Ctrl-C ended it, and ``resume`` goes on.
    """

    folder: Path
    interrupted: bool = False

    @cached_property
    def _read(self) -> tuple[Search, list[Step]]:
        folder = StudyFolder(self.folder)
        study = folder.load()
        steps = folder.steps()
        search = _search(_matrix_of(folder), study, steps[0].load().host if steps else None)
        return search, [read_step(step, search.space) for step in steps]

    @cached_property
    def answer(self) -> TuneAnswer:
        """All that was found. Raises StoreError when the folder cannot be read."""
        return answer(*self._read, StudyFolder(self.folder).sessions(), interrupted=self.interrupted)

    @property
    def name(self) -> str:
        """Name of the search."""
        return self.folder.name

    @property
    def settings(self) -> Mapping[str, str]:
        """Factor -> level of the recommended recipe: {} where nothing is shown to be faster than the baseline."""
        return self.answer.settings

    @property
    def ratio(self) -> float | None:
        """How many times as fast the recipe that was confirmed is as the baseline, on fresh blocks (None: none was)."""
        return self.answer.effect.ratio if self.answer.effect else None

    @property
    def gain(self) -> float | None:
        """The ratio as the headline has it: less the luck of being told only if its interval is above 1."""
        return self.answer.gain

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``ratio``."""
        effect = self.answer.effect
        return (effect.low, effect.high) if effect and effect.low is not None and effect.high is not None else None

    @property
    def lines(self) -> str:
        """The shell's lines that set up the recommended recipe, '' where nothing is recommended."""
        file = self.folder / _RECIPE
        return file.read_text(encoding="utf-8") if self.settings and file.exists() else ""

    @property
    def exit_code(self) -> ExitCode:
        """What ``envmatrix tune`` exits with: 4 when not one candidate ever ran well."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.FINE if self.answer.ran_well else ExitCode.NOTHING_RAN

    def resume(self, *, budget: float | str | None = None, progress: ProgressCallback = silent) -> TuneResult:
        """Go on with a search that was stopped, or give its confirmation more time. Arguments and errors: ``tune``."""
        return carry_out(resume_study(self.folder, budget, progress), partial(watch_step, quiet=False, tell=progress))

    def to_json(self) -> dict[str, object]:
        """Return the answer as tune.json has it."""
        return to_json(self.name, self.answer, self.lines)

    def write(self) -> None:
        """Write tune.json and report.html."""
        write_whole(self.folder / TOLD, json.dumps(self.to_json(), indent=1) + "\n")
        folder = StudyFolder(self.folder)
        subject = subject_of(folder.load(), folder.steps()[0].load())
        page = to_html(self.name, self.answer, *self._read, self.lines, subject)
        write_whole(self.folder / "report.html", page)

    def __str__(self) -> str:
        return "\n".join(lines_of(self.answer))


def tune(
    program: str | Sequence[str], *, budget: float | str | None = None, factors: Names | None = None,
    engine: str | None = None, matrix: PathLike | None = None, name: str | None = None, results: PathLike = "results",
    metric_regex: str = "", metric_json: str = "", launcher: str = DEFAULT, launcher_options: Asked | None = None,
    sampler: str = "", metric_steps: str = "", progress: ProgressCallback = silent,
) -> TuneResult:  # fmt: skip
    """Search the best environment for a program within a budget, and confirm what it gains on fresh blocks.

    Args:
        program: a command line as a list of words, or the name of a design of a matrix.
        budget: the time that all trials take: seconds, or '90s', '20m', '2h'; None: 20 minutes, or as many as it needs.
        factors: only these are searched, as names or 'a,b'; None: all setting factors, or the design's.
        engine: where processes start; None: here ('local'), or the design's first one.
        matrix: where the design is; None: ./matrix.yaml, else the one that comes with envmatrix.
        name: of the search; None: the program and the time.
        results: the folder in which the folder of the search is made.
        metric_regex: how fast a program of words was: a number in ( ) in its output; None: as ``envmatrix bench`` does.
        metric_json: the same: FILE:KEY of a JSON file that it writes.
        launcher: where trials of a design run: 'here' or another launcher's name, on its nodes side by side.
        launcher_options: what is asked of it, such as {'nodes': 4}.
        sampler: one of Optuna's ('tpe', 'nsga2', 'random') that proposes what is screened; '': the own model does.
        metric_steps: as ``metric_regex``, of a program that prints a line at each step: a pattern of these lines.
        progress: takes lines of progress; ``print`` shows them.

    Returns:
        The TuneResult, with its report written into its folder.

    Raises:
        InputError: an argument is wrong, the space is empty, or the budget is too small to confirm anything.
        EngineError: an engine is not there or could not build.
        NothingRanError: the program or the baseline fails.
        StoreError: the folder cannot be written.

    """
    watch = partial(watch_step, quiet=False, tell=progress)
    sought = Sought(budget, split_names(factors), name, results, sampler)
    if isinstance(program, str):
        begun = begin_design(program, sought, engine, matrix, progress, launcher, launcher_options or {})
        return carry_out(begun, watch)
    if launcher != DEFAULT:
        raise InputError(f"launcher {launcher!r}: a program is run here", remedy=PROGRAM_ELSEWHERE)
    asked = AskedProgram(tuple(program), metric_regex=metric_regex, metric_json=metric_json, metric_steps=metric_steps)
    begun = begin_program(asked, sought, progress, lambda _: None)
    return carry_out(begun, watch, is_set_up=True)


@dataclass(frozen=True)
class Sought:
    """What is asked of a search, whatever it searches: the arguments of ``tune`` of these names."""

    budget: float | str | None = None
    factors: Sequence[str] | None = None
    name: str | None = None
    results: PathLike = "results"
    sampler: str = ""


def begin_program(
    asked: AskedProgram, sought: Sought, progress: ProgressCallback, show: Callable[[str], None]
) -> Tuning:
    """Run a program once, and make the study of its default space. Raises as ``tune``."""
    file = Path("matrix.yaml")
    made = make_matrix(asked, Overrides(), file, _only_of_look(progress), show)
    with cleaned_up_on_failure(made.matrix.workloads.values(), progress):
        matrix, levels = usual_space(made, file)
        design = matrix.designs["default"].model_copy(update={"target": _TARGET})
        named = [one for one in matrix.environments if one != design.baseline]
        return _begun(matrix, design, levels, named, sought, f"tune-{made.name}", progress, trial_s=made.took_s)


def begin_design(
    name_of_design: str, sought: Sought, engine: str | None, matrix: PathLike | None, progress: ProgressCallback,
    launcher: str = DEFAULT, asked: Asked | None = None,
) -> Tuning:  # fmt: skip
    """Make the study of a design: its factors, or the levels of its environments. Raises as ``tune``."""
    whole = load_matrix(matrix, progress)
    design = find_design(whole, name_of_design)
    if len(design.workloads) != 1:
        said = (
            f"design {name_of_design!r} has {len(design.workloads)} workloads, and the best environment is that of one"
        )
        raise InputError(said, remedy="tune a design with one workload")
    engines = requested_engines(design, [engine] if engine else None, progress)
    design = design.model_copy(update={"engines": engines[:1], "target": _TARGET, "race": False})
    design, where = _placed(whole, design, launcher, asked or {}, progress)
    levels = _levels_of(whole, design)
    made = f"tune-{name_of_design}-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}"
    return _begun(whole, design, levels, design.environments, sought, made, progress, where=where)


def _placed(
    matrix: Matrix, design: Design, launcher: str, asked: Asked, progress: ProgressCallback
) -> tuple[Design, Place]:
    """Return where a search runs, and its design as that can run it; what cannot be is an error."""
    kind = LAUNCHERS.make(launcher)
    design = scheduled(kind, design, progress)
    host = place(matrix, design, design.engines, launcher, asked, progress)
    span = nodes_of(matrix.workloads[design.workloads[0]].options)
    return design, Place(launcher=launcher, options=asked, width=kind.width(design, asked, span), host=host)


def resume_study(
    folder: Path, budget: float | str | None, progress: ProgressCallback, matrix: PathLike | None = None
) -> Tuning:
    """Return a search that was stopped, as it stands; ``budget`` is a new one for the whole of it.

    ``matrix``: whose locks are used (None: those it began with). A confirmation that had ended has further blocks where
    the budget is a longer one.
    """
    study_folder = StudyFolder(folder)
    study = study_folder.load()
    if budget is not None:
        study = study.model_copy(update={"budget": fraction("--budget", budget, parse_duration), "asked": True})
    whole = _matrix_of(study_folder, matrix)
    return Tuning(study_folder, study, whole, _search(whole, study), progress)


def find_study(name: PathLike | None, results: PathLike = "results") -> Path | None:
    """Return the folder of a search by its path or name, None where there is none of that name.

    No name: the newest search, where no run is newer.
    """
    if name is None:
        begun = [*Path(results).glob("*/study.json"), *Path(results).glob("*/run.json")]
        newest = max(begun, key=lambda file: file.stat().st_mtime, default=None)
        return newest.parent if newest and newest.name == "study.json" else None
    return next((path for path in (Path(name), Path(results) / name) if (path / "study.json").exists()), None)


def carry_out(tuning: Tuning, watch: Watch, *, is_set_up: bool = False) -> TuneResult:
    """Go on with a search until it is over or interrupted, and write what it found."""
    workloads = [tuning.matrix.workloads[name] for name in tuning.study.design.workloads]
    tuning.folder.lock()
    try:
        tuning.begin_session(time.time())
        with patient(tuning.progress), around(workloads, tuning.progress, is_set_up=is_set_up):
            ended = _searched(tuning, watch)
    except StoreError as error:
        first = f"{error.remedy}; " if error.remedy else ""
        remedy = f"{first}`envmatrix resume {tuning.study.name}` goes on, nothing that has ended is lost"
        raise StoppedRunError(f"{error.message}; the search was stopped", where=error.where, remedy=remedy) from error
    finally:
        tuning.folder.unlock()
    result = TuneResult(tuning.folder.path, interrupted=ended is not None)
    if steps := tuning.folder.steps():
        if result.settings:
            write_whole(result.folder / _RECIPE, _recipe(reopen(steps[-1], Path(tuning.matrix.path), silent)) + "\n")
        else:  # what a shorter budget recommended is so no more
            (result.folder / _RECIPE).unlink(missing_ok=True)
        result.write()
    return result


def _searched(tuning: Tuning, watch: Watch) -> Ended | None:
    """Go on with a search; Ctrl-C between two of its steps ends it as in the middle of one does."""
    try:
        return search_on(tuning, watch, engine=tuning.study.design.engines[0])
    except KeyboardInterrupt:
        if not tuning.folder.steps():
            raise  # there is nothing to go on with
        interrupts.heeded()
        return Ended("interrupted", interrupted=True)


def _recipe(experiment: Experiment) -> str:
    arm = experiment.plan.arms[-1]
    environment = experiment.run.environments[arm.runs]
    prepared = experiment.prepared[environment.image_key, arm.engine]
    return export_lines(environment, preload_paths(prepared, environment), "sh")


def _begun(
    matrix: Matrix, design: Design, levels: Mapping[str, tuple[str, ...]], named: Sequence[str], sought: Sought,
    usual_name: str, progress: ProgressCallback, *, trial_s: float | None = None, where: Place | None = None,
) -> Tuning:  # fmt: skip
    name = sought.name or usual_name
    if sought.sampler:
        check_sampler(sought.sampler)
    if not NAME.match(name):
        raise InputError(f"--name: {name!r} is no usable name", remedy="use letters, digits, '.', '_', '+' and '-'")
    folder = StudyFolder(Path(sought.results) / name)
    if folder.path.exists() and not folder.is_unused:
        raise InputError(
            "it is already there", where=Where(folder.path), remedy="another --name, or `envmatrix resume`"
        )
    study = Study(
        name=name, created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        envmatrix=__version__, design=design, budget=_USUAL_BUDGET_S,
        factors=_chosen(levels, sought.factors), named=tuple(named), trial_s=trial_s, place=where,
        sampler=sought.sampler, asked=sought.budget is not None,
    )  # fmt: skip
    search = _search(matrix, study)
    usual_s = max(_USUAL_BUDGET_S, least_s(search, trial_s or 0.0))
    given_s = usual_s if sought.budget is None else fraction("--budget", sought.budget, parse_duration)
    if trial_s is not None:
        check_budget(search, given_s, trial_s)
    study = study.model_copy(update={"budget": given_s})
    announce(search, study, progress)
    folder.create(study)
    return Tuning(folder, study, matrix, search, progress)


def _search(matrix: Matrix, study: Study, began: Host | None = None) -> Search:
    """Return the search of a study where it runs; ``began``: on the machine that it began on, to read it anywhere."""
    where, design = study.place, study.design
    host = where.host if where else None
    facts = (host or began or this_host()).facts()
    named = [name for name in study.named if _is_of_levels(matrix, name, study, facts)]
    space = space_of(matrix, study.factors, named, design.baseline, facts)
    return Search(space, design.seed, where.width if where else 1, study.sampler)


def _is_of_levels(matrix: Matrix, name: str, study: Study, facts: Mapping[str, str]) -> bool:
    """Say whether an environment differs from the baseline in levels that are searched alone."""
    own, home = (resolve(matrix, one, facts).levels for one in (name, study.design.baseline))
    return all(level == home[factor] or level in study.factors.get(factor, ()) for factor, level in own.items())


def _levels_of(matrix: Matrix, design: Design) -> dict[str, tuple[str, ...]]:
    """Return the levels that a design crosses, else those of its environments, by setting factors."""
    if design.factors:
        return {name: tuple(levels) for name, levels in design.factors.items()}
    found: dict[str, dict[str, None]] = {}
    for name in (*design.environments, *design.cumulative):
        for factor, level in resolve(matrix, name, {}).levels.items():
            found.setdefault(factor, {})[level] = None
    return {name: tuple(levels) for name, levels in found.items() if not matrix.factors[name].is_image}


def _chosen(levels: Mapping[str, tuple[str, ...]], factors: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    for name in factors or ():
        if name not in levels:
            raise InputError(f"--factors: no factor {name!r} to search", remedy=suggestion(name, levels))
    return {name: given for name, given in levels.items() if not factors or name in factors}


def _matrix_of(folder: StudyFolder, beside: PathLike | None = None) -> Matrix:
    """Return the matrix of a study as its first step kept it, its programs where they lie; ``beside``: its locks."""
    steps = folder.steps()
    if not steps:
        remedy = "give the command that began it again: it begins anew under its name"
        raise InputError("nothing of it was run yet", where=Where(folder.path), remedy=remedy)
    run = steps[0].load_here()
    matrix = matrix_of_run(steps[0], run, beside)
    return matrix.model_copy(update={"workloads": {**matrix.workloads, **run.workloads}})


def _only_of_look(progress: ProgressCallback) -> ProgressCallback:
    """Pass on what is said of the program itself: what a benchmark of it would hold is no matter here."""

    def tell(line: str) -> None:
        if not line.startswith(("environments:", "6 blocks of ", "one block takes")):
            progress(line)

    return tell
