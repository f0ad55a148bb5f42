"""The launcher kind ``slurm``: its command-line options, and the checks of the cluster before a run starts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from envmatrix.block.block_instructions import BlockOrder
from envmatrix.engines.base import Engine
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Option, refuse_engines_without_commands
from envmatrix.launchers.block_orders import block_folder, group_names, make_parts, most_seconds, nodes_per_block
from envmatrix.launchers.block_start import module_and_python_lines
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm import partitions, training_script_export
from envmatrix.launchers.slurm.client import Node, SlurmClient, nodes_host
from envmatrix.launchers.slurm.launcher import SlurmLauncher, nodes_of_block
from envmatrix.launchers.slurm.script import (
    BlockJob,
    directives,
    make_block_job,
    script_with_order,
    slurm_options,
)
from envmatrix.matrix import Design, Slurm
from envmatrix.results.run_model import LauncherOptions
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.overrides import with_changed_values


class SlurmKind(LauncherKind):
    """The kind ``slurm``: batch jobs of a cluster. Command-line options override the design's ``slurm:`` part."""

    name = "slurm"
    takes_turns = True
    spans_nodes = True
    forms = ("slurm", "pyxis")
    training_script = staticmethod(training_script_export.training_script)
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
        return SlurmClient().silence()

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time."""
        return max(1, with_changed_values(design.slurm, asked).nodes // span)

    def check_and_find_host(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host:
        """Check that this cluster can run the design, and return its nodes as one host."""
        refuse_engines_without_commands(self.name, engines)
        client, part = SlurmClient(), with_changed_values(design.slurm, asked)
        limits, nodes = client.partitions(), client.nodes(part)
        host = nodes_host(nodes)
        partitions.check(limits, part, span, _memory(part, nodes), part.time)
        usable = {node.name for node in nodes if node.usable}
        if len(usable) < span:
            raise InputError(
                f"a workload is spread over {span} nodes, and {len(usable)} can be had: {', '.join(sorted(usable))}",
                remedy="set fewer `nodes` in the workload, or allow more with --partition, --constraint and --nodelist",
            )
        for node in nodes:
            if not node.usable:
                reason = f" ({node.reason})" if node.reason else ""
                progress(f"node {node.name} is left out: it is {node.state}{reason}")
        _check_python(client, part, nodes, span)
        job = BlockJob("envmatrix", BlockOrder("", "/", 1, ()), Path(), part, {})
        if refusal := client.refusal("\n".join(["#!/bin/sh", *directives(job, span, part.time or 60.0), ""])):
            raise InputError(
                f"Slurm would refuse a job: {refusal}",
                remedy="check --partition, --account, --constraint and --gpus, and the design's `slurm:` part",
            )
        return host

    def check_block(self, design: Design, asked: LauncherOptions, span: int, trials: int, in_turns: int) -> None:
        """Reject blocks that could take longer than every requested partition allows."""
        client, part = SlurmClient(), with_changed_values(design.slurm, asked)
        if not part.time and (limits := client.partitions()):
            most_s = most_seconds(trials, in_turns, design.trial_limit)
            partitions.check(limits, part, span, _memory(part, client.nodes(part)), most_s)

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher that submits the run's blocks."""
        return SlurmLauncher(experiment, SlurmClient(), progress, ask)

    def scripts(self, experiment: Experiment) -> list[str]:
        """Return the scripts of the blocks that would be submitted at once."""
        options, span, groups = slurm_options(experiment), nodes_per_block(experiment), TrialGrouper(experiment, silent)
        texts = []
        for index in range(min(max(1, options.nodes // span), experiment.plan.max_blocks)):
            slots = experiment.plan.block(index)
            block = slots[0].block
            runnable = {slot.trial: slot for slot in slots if slot.arm.name not in experiment.run.skipped}
            files = block_folder(experiment, block)
            pending = PendingBlock(block, runnable, files, groups=group_names(slots, groups))
            parts, failed = make_parts(experiment, pending, groups, attempt=1)
            for trial in failed:
                raise EngineError(f"{trial.arm}: {trial.reason}")
            node = nodes_of_block(block, options.nodelist, span)
            texts.append(script_with_order(make_block_job(experiment, block, parts, 1, node=node)))
        return texts


def _check_python(client: SlurmClient, part: Slurm, nodes: Sequence[Node], span: int) -> None:
    """Reject nodes without a Python that can start a block. Only as many idle nodes are asked as will be used."""
    idle = [node.name for node in nodes if node.state == "idle"][: max(part.nodes, span)]
    report_line = 'echo "no python on $SLURMD_NODENAME"; exit'
    output = client.run_now(part, idle, "\n".join(module_and_python_lines(part.modules, ":", f"{{ {report_line}; }}")))
    nodes_without_python = sorted(set(re.findall(r"no python on (\S+)", output)))
    if nodes_without_python:
        raise InputError(
            f"node {nodes_without_python[0]} has no Python 3.9 or later, which starts the trials there",
            remedy="name a module that has one (`--modules`), or choose other nodes (`--constraint`, `--nodelist`)",
        )


def _memory(part: Slurm, nodes: Sequence[Node]) -> int:
    """Return how many bytes of a node's memory a block requests."""
    return part.memory or min((node.memory_bytes for node in nodes if node.usable), default=0)
