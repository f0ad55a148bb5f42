"""What `resume` changes of a run: noted in its history before anything runs."""

from __future__ import annotations

import datetime
from dataclasses import replace

from envmatrix import __version__
from envmatrix.matrix import Design, Slurm
from envmatrix.store import Change
from envmatrix.store.run import shown
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.requested import overridden


def resumed(
    experiment: Experiment,
    *,
    budget: float | str | None = None,
    target: float | str | None = None,
    slurm: Slurm | None = None,
    command: tuple[str, ...] = (),
) -> Experiment:
    """Return the experiment with a new budget, target or part for Slurm; None: as it stands.

    What really changes is appended to the run's history, and holds from then on. The run is locked first: nobody
    changes it while another envmatrix measures. Raises InputError for what cannot be, StoreError when it is locked.
    """
    folder = experiment.folder
    asked = {"budget": budget, "target": target}
    folder.lock()
    run = folder.load()
    design = overridden(run.design, {name: value for name, value in asked.items() if value is not None})
    if slurm is not None:
        design = design.model_copy(update={"slurm": slurm})
    change = _change(run.design, design, command)
    if change is None:
        return experiment
    folder.change(change)
    return replace(experiment, run=run.changed([change]))


def _change(old: Design, new: Design, command: tuple[str, ...]) -> Change | None:
    """Return what differs between two designs as a line of the history; None when nothing does."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    values = {name: (getattr(old, name), getattr(new, name)) for name in ("budget", "target", "slurm")}
    differs = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if not differs:
        return None
    was = {name: shown(before) for name, (before, _) in differs.items()}
    after = {name: value for name, (_, value) in differs.items()}
    return Change.model_validate({"at": now, "envmatrix": __version__, "was": was, "command": command, **after})
