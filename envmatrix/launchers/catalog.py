"""Catalog of launchers by name. Add a new one here with one line, or as an entry point of another package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.errors import InputError
from envmatrix.launchers.base import ExportsScripts, LauncherKind, check_race
from envmatrix.system.plugins import Catalog, ExtensionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Design
    from envmatrix.results.run_model import LauncherOptions
    from envmatrix.system.host import Host
    from envmatrix.system.progress import ProgressCallback

#: The launcher used if none is given.
DEFAULT = "here"
LAUNCHERS: Catalog[LauncherKind] = Catalog(
    kind="launcher",
    group="envmatrix.launchers",
    protocol="envmatrix.launchers.base:LauncherKind",
    built_in={
        "here": "envmatrix.launchers.local:LocalLauncherKind",
        "ssh": "envmatrix.launchers.ssh:SshKind",
        "slurm": "envmatrix.launchers.slurm.options_and_cluster_checks:SlurmKind",
        "gridengine": "envmatrix.launchers.gridengine:GridEngineKind",
        "pbs": "envmatrix.launchers.pbs:PbsKind",
        "lsf": "envmatrix.launchers.lsf:LsfKind",
        "kubernetes": "envmatrix.launchers.kubernetes:KubernetesKind",
    },
)


def sequential_unless_interleavable(kind: LauncherKind, design: Design, progress: ProgressCallback) -> Design:
    """Return the design with the schedule that a launcher can run: interleaved only if it can interleave trials."""
    if design.schedule == "sequential" or kind.takes_turns:
        return design
    if design.schedule == "turns":
        progress(f"no turns: launcher {kind.name} runs one trial after the other")
    return design.model_copy(update={"schedule": "sequential"})


def find_trial_host(
    kind: LauncherKind,
    design: Design,
    asked: LauncherOptions,
    engines: Sequence[Engine],
    spread: Mapping[str, int],
    progress: ProgressCallback,
) -> Host | None:
    """Return the machine that trials will run on (None: this one). Raises an error if the launcher cannot run it.

    ``spread`` maps each workload to its number of nodes. Nothing is built or written before this.
    """
    check_span(kind, spread)
    if design.schedule == "turns" and not kind.takes_turns:
        raise InputError(
            f"design {design.name!r}: launcher {kind.name} runs trials one after the other, not in turns",
            remedy="write `schedule: sequential` in the design, or use `--launcher here`",
        )
    span = max(spread.values(), default=1)
    check_race(race=design.race, width=kind.width(design, asked, span))
    return kind.check_and_find_host(design, asked, engines, span, progress)


def check_span(kind: LauncherKind, spread: Mapping[str, int]) -> None:
    """Reject workloads (name -> number of nodes) that a launcher cannot place."""
    wide = next((name for name, nodes in spread.items() if nodes > 1), None)
    if wide and not kind.spans_nodes:
        raise InputError(
            f"workload {wide!r} is spread over {spread[wide]} nodes, and launcher {kind.name} has one",
            remedy="use `--launcher slurm`, or start it by hand on each machine (docs/parallel.md)",
        )


def check_options(kind: LauncherKind, asked: LauncherOptions) -> None:
    """Reject options of other launchers, which would have no effect."""
    known_names = {option.name for option in kind.options}
    foreign = next((name for name in asked if name not in known_names), None)
    if foreign:
        raise InputError(
            f"--{foreign} means nothing to launcher {kind.name}",
            remedy=f"leave it out, or choose another --launcher; {kind.name} takes "
            + (", ".join(f"--{name}" for name in sorted(known_names)) or "no options"),
        )


def loadable_kinds() -> list[LauncherKind]:
    """Return every launcher that can be loaded; `envmatrix doctor` reports the others."""
    return [kind for _, kind in LAUNCHERS.make_all() if not isinstance(kind, ExtensionError)]


def script_forms() -> dict[str, ExportsScripts]:
    """Return the forms of a script for the user's own training, each with the launcher that writes it."""
    return {form: kind for kind in loadable_kinds() if isinstance(kind, ExportsScripts) for form in kind.forms}
