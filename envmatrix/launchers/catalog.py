"""Every launcher by name. A new launcher is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from envmatrix.errors import InputError, suggestion
from envmatrix.launchers.base import Launcher
from envmatrix.launchers.here import Here
from envmatrix.say import Say
from envmatrix.trials.experiment import Experiment

#: Asks the user a yes-or-no question.
Ask = Callable[[str], bool]


def _here(_experiment: Experiment, _say: Say, _ask: Ask | None) -> Launcher:
    return Here()


def _slurm(experiment: Experiment, say: Say, ask: Ask | None) -> Launcher:
    from envmatrix.launchers.slurm.client import SlurmClient
    from envmatrix.launchers.slurm.launcher import SlurmLauncher

    return SlurmLauncher(experiment, SlurmClient(), say, ask)


LAUNCHERS: Mapping[str, Callable[[Experiment, Say, Ask | None], Launcher]] = {"here": _here, "slurm": _slurm}


def open_launcher(experiment: Experiment, say: Say, ask: Ask | None) -> Launcher:
    """Return the launcher that a run was begun with; ``ask`` is None where nobody can answer."""
    name = experiment.run.launcher
    if name not in LAUNCHERS:
        raise InputError(f"no launcher {name!r}", remedy=suggestion(name, LAUNCHERS))
    return LAUNCHERS[name](experiment, say, ask)
