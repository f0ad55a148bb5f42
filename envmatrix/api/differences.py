"""What differs between two environments: their packages, and what is active inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envmatrix.api.chosen import open_environment
from envmatrix.api.places import PathLike, find_run
from envmatrix.errors import InputError, suggestion
from envmatrix.evidence.difference import differing
from envmatrix.results import Run, RunFolder, Trial
from envmatrix.system.progress import ProgressCallback, silent


@dataclass(frozen=True)
class Difference:
    """One thing that two environments have otherwise; '' is what one of them has not."""

    path: str
    first: str
    second: str


@dataclass(frozen=True)
class Side:
    """One environment: what its image is made of, and the evidence of one process in it."""

    image: Mapping[str, str]
    evidence: Mapping[str, object]

    def parts(self) -> dict[str, object]:
        """Return both as one tree."""
        packages = {name.removeprefix("package "): is_at for name, is_at in self.image.items() if " " in name}
        return {"image": packages, **self.evidence}


def diff(
    first: str,
    second: str,
    *,
    engine: str | None = None,
    matrix: PathLike | None = None,
    run: PathLike | None = None,
    results: PathLike = "results",
    progress: ProgressCallback = silent,
) -> tuple[Difference, ...]:
    """Return what differs between two environments: packages, libraries, variables, and all that processes read back.

    With ``run`` it is read from what that run recorded, and nothing is started; otherwise one process starts in each.
    Raises InputError, EngineError and SkipEnvironmentError as ``export`` does.
    """
    if run is not None and (matrix is not None or engine is not None):
        raise InputError("what a run recorded has its own matrix and engines", remedy="leave --matrix and --engine out")
    if run is not None:
        one, other = _recorded(find_run(run, results), first, second)
    else:
        one, other = (_live(name, engine, matrix, results, progress) for name in (first, second))
    return tuple(Difference(*found) for found in differing(one.parts(), other.parts()))


def _live(
    name: str, engine: str | None, matrix: PathLike | None, results: PathLike, progress: ProgressCallback
) -> Side:
    session = open_environment(name, engine=engine, matrix=matrix, results=results, progress=progress)
    return Side(session.prepared.facts, session.evidence())


def _recorded(folder: RunFolder, first: str, second: str) -> tuple[Side, Side]:
    run = folder.load()
    trials: dict[str, Trial] = {}
    for trial in folder.trials(run.plan):
        if trial.environment in (first, second) and trial.outcome == "ok":
            trials.setdefault(trial.environment, trial)
    for name in (first, second):
        if name not in trials:
            known = {arm.environment for arm in run.arms}
            said = "has no successful trial of" if name in known else "has no environment"
            raise InputError(f"run {folder.path.name} {said} {name!r}", remedy=suggestion(name, trials.keys() | known))
    return _side(run, trials[first]), _side(run, trials[second])


def _side(run: Run, trial: Trial) -> Side:
    runs = next(arm.runs for arm in run.arms if arm.environment == trial.environment)
    image = run.images.get(f"{run.environments[runs].image_key}@{trial.engine}", {})
    evidence = (trial.document or {}).get("evidence")
    return Side(image, evidence if isinstance(evidence, Mapping) else {})
