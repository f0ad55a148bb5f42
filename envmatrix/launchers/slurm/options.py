"""The launcher kind ``slurm``: its command-line options, and the checks of the cluster before a run starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Option

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine, Prepared
    from envmatrix.matrix import Design
    from envmatrix.matrix.model import Workload
    from envmatrix.plan.environment import Environment
    from envmatrix.results.run import LauncherOptions
    from envmatrix.system.host import Host
    from envmatrix.system.progress import ProgressCallback
    from envmatrix.trials.experiment import Experiment


class SlurmKind(LauncherKind):
    """The kind ``slurm``: batch jobs of a cluster. Command-line options override the design's ``slurm:`` part."""

    name = "slurm"
    takes_turns = True
    spans_nodes = True
    forms = ("slurm", "pyxis")
    options = (
        Option("nodes", "N", "how many nodes work at once, each on a block of its own"),
        Option("partition", "NAME", "partition (default: the cluster's)"),
        Option("account", "NAME", "account to charge"),
        Option("constraint", "FEATURE", "features that the nodes must have"),
        Option("nodelist", "NODE", "nodes by name; blocks go round them", takes="names"),
        Option("time", "TIME", "time limit of one block, such as 90s, 10m or 2h", takes="duration"),
        Option("gpus", "N", "GPUs of a node, such as 2 or a100:2; with --image, here: all, or 0,1"),
        Option("busy", "PERCENT", "hand a block back when others use more than this of the node's CPUs, such as 10%"),
        Option("modules", "NAME", "modules to load on the nodes", takes="names"),
    )

    def unavailable(self) -> str | None:
        """Return that Slurm is missing or does not answer; None if it can be used."""
        if shutil.which("sbatch") is None:
            return "no `sbatch` on PATH: run envmatrix on a login node of the cluster"
        from envmatrix.launchers.slurm.client import SlurmClient

        return SlurmClient().silence()

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time."""
        from envmatrix.launchers.slurm.jobs import overlay

        return max(1, overlay(design.slurm, asked).nodes // span)

    def look(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host:
        """Inspect the nodes that may be used."""
        from envmatrix.launchers.slurm.jobs import overlay
        from envmatrix.launchers.slurm.preflight import look_at_nodes

        return look_at_nodes(overlay(design.slurm, asked), engines, span, progress)

    def check_block(self, design: Design, asked: LauncherOptions, span: int, trials: int, in_turns: int) -> None:
        """Reject blocks that exceed the time limits of the partitions."""
        from envmatrix.launchers.slurm.jobs import overlay
        from envmatrix.launchers.slurm.preflight import check_block

        check_block(overlay(design.slurm, asked), span, trials, in_turns, design.trial_limit)

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher that submits the run's blocks."""
        from envmatrix.launchers.slurm.client import SlurmClient
        from envmatrix.launchers.slurm.launcher import SlurmLauncher

        return SlurmLauncher(experiment, SlurmClient(), progress, ask)

    def scripts(self, experiment: Experiment) -> list[str]:
        """Return the scripts of the blocks that would be submitted at once."""
        from envmatrix.launchers.block_orders import widest_workload
        from envmatrix.launchers.slurm.jobs import slurm_options
        from envmatrix.launchers.slurm.preflight import scripts

        return scripts(experiment, max(1, slurm_options(experiment).nodes // widest_workload(experiment)))

    def training_script(
        self,
        environment: Environment,
        engine: Engine,
        prepared: Prepared,
        preload: tuple[str, ...],
        form: str,
        program: Workload | None = None,
    ) -> str:
        """Return a batch script for the user's own training."""
        from envmatrix.launchers.slurm.export import training_script

        return training_script(environment, engine, prepared, preload, form, program)
