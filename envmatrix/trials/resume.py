"""What `resume` finds and changes of a run: noted in its history before anything runs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace

from envmatrix.errors import InputError
from envmatrix.matrix import Design
from envmatrix.results import Change, Run, RunFolder
from envmatrix.results.plan_check import Misfit
from envmatrix.results.run import Asked, shown
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.images import unlisted
from envmatrix.trials.overrides import overridden
from envmatrix.version import __version__


def resumed(
    experiment: Experiment,
    *,
    budget: float | str | None = None,
    target: float | str | None = None,
    max_blocks: int | None = None,
    launcher_options: Asked | None = None,
    command: tuple[str, ...] = (),
) -> Experiment:
    """Return the experiment with a new budget, target or most blocks, or more asked of its launcher.

    None: as it stands.

    What really changes is appended to the run's history, and holds from then on; so is after how many blocks the run
    could be read by now, as whoever resumes may do so because of what was read; and what its images hold, where an
    older envmatrix began it and did not say. The run is locked first: nobody changes it while another envmatrix
    measures. Raises InputError for what cannot be, StoreError when it is locked.
    """
    asked = {"budget": budget, "target": target, "max_blocks": max_blocks}
    given = {name: value for name, value in asked.items() if value is not None}
    overridden(experiment.run.design, given)
    folder = experiment.folder
    folder.lock()
    run = folder.load_here()
    design = overridden(run.design, given)
    _check_blocks(run.design, design)
    options = {**run.launcher_options, **(launcher_options or {})}
    files = unlisted(run, experiment.prepared)
    change = _change(run, design, options, command, _unread(folder, run), files)
    if change is None:
        return experiment
    folder.change(change)
    return replace(experiment, run=run.changed([change]))


def note_reading(folder: RunFolder, command: tuple[str, ...] = ()) -> None:
    """Note in the history that a run is read while it goes on: it may be ended because of what is read."""
    run = folder.load()
    change = _change(run, run.design, run.launcher_options, command, _unread(folder, run), {})
    if change:
        folder.change(change)


def _unread(folder: RunFolder, run: Run) -> int | None:
    """Return how many blocks are on disk; None where no history needs to say so."""
    strangers: list[Misfit] = []
    blocks = len({trial.block for trial in folder.readings(run.plan, strangers.append)})
    return None if blocks < run.plan.min_blocks or blocks in run.plan.looked else blocks


def _change(
    run: Run,
    design: Design,
    options: Asked,
    command: tuple[str, ...],
    looked: int | None,
    files: Mapping[str, str],
) -> Change | None:
    """Return what differs from the run as it stands as a line of the history; None when nothing does."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    values: dict[str, tuple[float | Asked, float | Asked]] = {
        "budget": (run.design.budget, design.budget),
        "target": (run.design.target, design.target),
        "max_blocks": (run.design.max_blocks, design.max_blocks),
        "launcher_options": (run.launcher_options, options),
    }
    differs = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if not differs and looked is None and not files:
        return None
    was = {name: shown(before) for name, (before, _) in differs.items()}
    after = {name: value for name, (_, value) in differs.items()}
    about = {"at": now, "envmatrix": __version__, "was": was, "command": command, "looked": looked, "files": files}
    return Change.model_validate({**about, **after})


def _check_blocks(before: Design, after: Design) -> None:
    """Raise InputError where a run cannot have another most number of blocks."""
    if after.max_blocks < before.max_blocks:
        raise InputError(
            f"--max-blocks: the run may have {before.max_blocks} blocks already, and what was run stays",
            remedy=f"give it more than {before.max_blocks}; Ctrl-C ends it sooner",
        )
    if before.race and after.max_blocks > before.max_blocks:
        raise InputError(
            "--max-blocks: this run is a race, and when it decides follows from its most number of blocks",
            remedy=f"begin another one: `envmatrix bench DESIGN --max-blocks {after.max_blocks}`",
        )
