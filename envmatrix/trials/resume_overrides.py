"""Changes that `resume` makes to a run, recorded in its history before anything runs."""

from __future__ import annotations

import datetime
from dataclasses import replace

from envmatrix.errors import InputError
from envmatrix.matrix import Design
from envmatrix.results import Change, Run, RunFolder
from envmatrix.results.plan_check import RejectedLine
from envmatrix.results.run_model import LauncherOptions, value_text
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.overrides import with_changed_values
from envmatrix.version import __version__


def apply_resume_changes(
    experiment: Experiment,
    *,
    launcher_options: LauncherOptions | None = None,
    command: tuple[str, ...] = (),
    **limits: float | str | None,
) -> Experiment:
    """Return the experiment with new launcher options, or a new ``budget``, ``target`` or ``max_blocks``.

    Changes are appended to the run's history and apply from then on. The number of blocks on disk is recorded as an
    interim analysis, since results may have been read before resuming. The run is locked first, so that it cannot
    change while another envmatrix measures. Raises InputError for invalid values, StoreError if it is locked.
    """
    with_changed_values(experiment.run.design, limits)
    folder = experiment.folder
    folder.lock()
    run = folder.load_for_resume()
    design = with_changed_values(run.design, limits)
    _check_blocks(run.design, design)
    options = {**run.launcher_options, **(launcher_options or {})}
    change = _make_change(run, design, options, command, _unrecorded_blocks(folder, run))
    if change is None:
        return experiment
    folder.change(change)
    return replace(experiment, run=run.changed([change]))


def record_interim_reading(folder: RunFolder) -> None:
    """Record an interim analysis in the history, as the reader may end the run because of its results."""
    run = folder.load()
    change = _make_change(run, run.design, run.launcher_options, (), _unrecorded_blocks(folder, run))
    if change:
        folder.change(change)


def _unrecorded_blocks(folder: RunFolder, run: Run) -> int | None:
    """Return how many blocks are on disk; None if the history needs no entry for them.

    Raises InputError if they have intervals in a run that is read once.
    """
    misfits: list[RejectedLine] = []
    blocks = len({trial.block for trial in folder.facts(run.plan, misfits.append)})
    if blocks < run.plan.min_blocks or blocks in run.plan.looked:
        return None
    if run.plan.read_once:
        raise InputError(
            f"run {run.name} is read only at its end (read_once), and {blocks} blocks of it can be read already",
            remedy="wait for its end if it runs; for more blocks, start a new run",
        )
    return blocks


def _make_change(
    run: Run, design: Design, options: LauncherOptions, command: tuple[str, ...], looked: int | None
) -> Change | None:
    """Return the differences from the current run as an entry of its history; None without any."""
    limits = ("budget", "target", "max_blocks")
    old = {**{name: getattr(run.design, name) for name in limits}, "launcher_options": run.launcher_options}
    new = {**{name: getattr(design, name) for name in limits}, "launcher_options": options}
    changed_names = [name for name in new if new[name] != old[name]]
    if not changed_names and looked is None:
        return None
    return Change.model_validate(
        {
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "envmatrix": __version__,
            "was": {name: value_text(old[name]) for name in changed_names},
            "command": command,
            "looked": looked,
            **{name: new[name] for name in changed_names},
        }
    )


def _check_blocks(old_design: Design, new_design: Design) -> None:
    """Raise InputError if the run cannot have the new maximum of blocks."""
    if new_design.max_blocks < old_design.max_blocks:
        raise InputError(
            f"--max-blocks: this run may already have {old_design.max_blocks} blocks, and they are kept",
            remedy=f"pass more than {old_design.max_blocks}; to stop earlier, press Ctrl-C",
        )
    if old_design.race and new_design.max_blocks > old_design.max_blocks:
        raise InputError(
            "--max-blocks: this run is a race, whose decisions depend on its maximum number of blocks",
            remedy=f"start a new run: `envmatrix bench DESIGN --max-blocks {new_design.max_blocks}`",
        )
