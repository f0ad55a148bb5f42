"""Claims of searches, and the independent run that checks all unchecked tries of a machine.

A check is one run, interleaved if its design is. It has the baseline, its copy, each distinct recipe that these tries
confirmed, and the named recipes with the highest expected gain. Its blocks were not used by any search, and it chooses
nothing. Judging needs only `claim.json` of a try, `check.json` of a check and the check's trials.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envmatrix.api import runs
from envmatrix.api.tuning import search as tunes
from envmatrix.errors import NothingRanError
from envmatrix.matrix import Matrix
from envmatrix.matrix.additions import with_only_design
from envmatrix.results import RunFolder
from envmatrix.search.space import Space
from envmatrix.search.step_results import find_row
from envmatrix.search.study_folder import StudyFolder
from envmatrix.system.atomic_files import write_whole
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.overrides import Overrides
from validation.measured_parts import trials_of

#: Fields of a searched design that a check does not take over.
_OF_A_SEARCH = ("name", "description", "factors", "cumulative", "application", "reference_values", "race", "steady",
                "claims_first")  # fmt: skip
_DESIGN = "independent"
_TRY = re.compile(r"try-(\d+)")


@dataclass(frozen=True)
class Check:
    """An independent run: ``of`` maps tries to the environments of their recipes; ``named`` are named recipes."""

    path: Path
    of: Mapping[str, str]
    named: Sequence[str]
    levels: Mapping[str, Mapping[str, str]]
    blocks: int

    @property
    def run(self) -> RunFolder:
        """Return its run folder, which may not exist yet."""
        files = sorted((self.path / "run").glob("*/run.json"))
        return RunFolder(files[-1].parent if files else self.path / "run" / "none")

    @property
    def is_over(self) -> bool:
        """Return whether every block is complete."""
        if not self.run.run_file.exists():
            return False
        plan = self.run.load().plan
        trials = Counter(trial.block for trial in trials_of(self.run, plan))
        return sum(count == len(plan.arms) for count in trials.values()) == plan.max_blocks


def number_of(folder: Path) -> int:
    """Return the number of a try, 0 for another folder."""
    found = _TRY.fullmatch(folder.name)
    return int(found[1]) if found else 0


def tries_in(part: Path) -> list[Path]:
    """Return the folders of the tries that were begun, in order."""
    there = {file.parent for name in ("study.json", "claim.json") for file in part.glob(f"try-*/{name}")}
    return sorted((path for path in there if number_of(path)), key=number_of)


def is_searched(folder: Path) -> bool:
    """Return whether the search of a try has finished, that is, has an answer without an interruption."""
    file = folder / "tune.json"
    return claim_of(folder) is not None or (file.exists() and not json.loads(file.read_text())["interrupted"])


def claim_of(folder: Path) -> Mapping[str, Any] | None:
    """Return the claim of a try, or None if it is not written yet."""
    file = folder / "claim.json"
    return dict(json.loads(file.read_text())) if file.exists() else None


def words_of(what: Mapping[str, Any]) -> str:
    """Return a try's subject as text: a design's name, or a program's command."""
    if "program" not in what:
        return f"design {what.get('design', 'nobody noted')}"
    return f"{shlex.join(what['program'])}{', by its steps' if what.get('metric_steps') else ''}"


def write_claim(folder: Path, what: Mapping[str, Any], most: int | None) -> None:
    """Write the claim of a try's search, and up to ``most`` named recipes with the highest expected gain."""
    result = tunes.TuneResult(folder)
    (search, _), last = result._search_and_steps, StudyFolder(folder).steps()[-1].load()
    body: dict[str, Any] = {
        "of": words_of(what), "subject": what, "recipe": dict(result.answer.tried), "claimed": result.gain,
        "interval": result.interval, "spent_s": result.answer.spent_s, "recommended": bool(result.settings),
        "budget_s": StudyFolder(folder).load().budget, "matrix": tunes._study_matrix(StudyFolder(folder)).digest,
    }  # fmt: skip
    if result.settings:
        arm = last.arms[-1]
        row, named = find_row(search.space, last, arm), search.space.named
        best = named_of(result, row, most)
        body |= {"name": arm.runs, "row": _levels(search.space, row), "levels": last.environments[arm.runs].levels,
                 "named": {name: _levels(search.space, named[name]) for name in best}}  # fmt: skip
    write_whole(folder / "claim.json", json.dumps(body, indent=1) + "\n")


def _levels(space: Space, row: int) -> dict[str, str]:
    code = space.codes[row].tolist()
    return {factor: known[at] for factor, known, at in zip(space.factors, space.levels, code, strict=True)}


def named_of(result: tunes.TuneResult, own: int, most: int | None) -> list[str]:
    """Return named recipes that worked in a search, other than its ``own``, by decreasing expected gain.

    The blocks that confirmed its own recipe are not used.
    """
    search, steps = result._search_and_steps
    batches = [step.batch for step in steps]
    allowed = search.known(batches).allowed
    rows = {name: row for name, row in search.space.named.items() if allowed[row] and row != own}
    if not rows:
        return []
    mean, _ = search.posterior(batches).gain_distribution(list(rows.values()), search.columns[list(rows.values())])
    gains = dict(zip(rows, mean.tolist(), strict=True))
    return sorted(gains, key=lambda name: -gains[name])[:most]


def checks_in(part: Path) -> list[Check]:
    """Return the checks of a part in order."""
    files = sorted(part.glob("check-*/check.json"))
    return [Check(file.parent, **json.loads(file.read_text())) for file in files]


def check_of(part: Path, name: str) -> Check | None:
    """Return the check that contains a try, or None."""
    return next((check for check in checks_in(part) if name in check.of), None)


def unchecked(part: Path) -> list[list[Path]]:
    """Return the tries with a claim and without a check, grouped by what one run can check."""
    alike: dict[str, list[Path]] = {}
    for folder in tries_in(part):
        claim = claim_of(folder)
        if claim and claim["recommended"] and claim["interval"] and not check_of(part, folder.name):
            key = json.dumps([claim["subject"], claim["matrix"], list(claim["row"])])
            alike.setdefault(key, []).append(folder)
    return list(alike.values())


def begin_check(part: Path, tries: Sequence[Path], blocks: int) -> Check:
    """Write the recipes for a check of these tries, each once, even if several tries or names share it."""
    claims = {folder.name: claim for folder in tries if (claim := claim_of(folder))}
    known: dict[str, str] = {}  # settings of a row -> the environment with them
    named: dict[str, None] = {}
    levels: dict[str, Mapping[str, str]] = {}
    for claim in claims.values():
        for name, row in claim["named"].items():
            named[known.setdefault(_text(row), name)] = None
    of = {}
    for name, claim in claims.items():
        of[name] = known.setdefault(_text(claim["row"]), claim["name"])
        if of[name] not in named:
            levels[of[name]] = claim["levels"]
    path = part / f"check-{1 + len(checks_in(part)):02d}"
    path.mkdir(parents=True, exist_ok=True)
    body = {"of": of, "named": list(named), "levels": levels, "blocks": blocks}
    write_whole(path / "check.json", json.dumps(body, indent=1) + "\n")
    return Check(path, of, list(named), levels, blocks)


def _text(row: Mapping[str, str]) -> str:
    return json.dumps(row, sort_keys=True)


def matrix_of(check: Check, folder: Path) -> Matrix:
    """Return the matrix for checking confirmed recipes; ``folder`` is one of these tries."""
    study, matrix = StudyFolder(folder).load(), tunes._study_matrix(StudyFolder(folder))
    kept = study.design.model_dump(mode="json", exclude_defaults=True)
    kept = {key: value for key, value in kept.items() if key not in _OF_A_SEARCH}
    blocks = check.blocks
    limits = {"max_blocks": blocks, "min_blocks": min(blocks, 6), "budget": 1e6, "target": 0.0001, "seed": 1000}
    environments = list(dict.fromkeys([*check.levels, *check.named]))
    return with_only_design(matrix, _DESIGN, {**kept, **limits, "environments": environments}, check.levels)


def run_check(check: Check, part: Path, progress: ProgressCallback) -> bool:
    """Run or continue a check; return whether it was not interrupted."""
    folder = part / next(iter(check.of))
    progress(f"{check.path.name} of {', '.join(check.of)}")
    if check.run.run_file.exists():
        what = (claim_of(folder) or {}).get("subject", {})
        experiment = runs.reopen_run(check.run.path, NewRun(progress=progress), what.get("matrix"))
    else:
        command = ("selfbench", *sys.argv[1:])
        experiment = runs.begin_run(
            _DESIGN,
            Overrides(),
            NewRun(check.path / "run", command=command, progress=progress),
            matrix=matrix_of(check, folder),
        )
    result = runs.finish_run(experiment, runs.line_progress_watch(progress))
    if not (result.interrupted or check.is_over):
        raise NothingRanError(f"{check.path.name} of {', '.join(check.of)} ended too soon: {result.why}",
                              remedy=f"its logs are in {experiment.folder.logs}")  # fmt: skip
    return not result.interrupted
