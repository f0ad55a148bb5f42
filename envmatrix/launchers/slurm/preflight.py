"""Checks of the cluster before anything is submitted, and the scripts of a dry run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from envmatrix.block.order import BlockOrder
from envmatrix.engines.base import Engine
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import refuse_engines_without_commands
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.block_orders import block_folder, group_names, make_parts, most_seconds, widest_workload
from envmatrix.launchers.node_start import find_lines
from envmatrix.launchers.slurm import partitions
from envmatrix.launchers.slurm.client import Node, SlurmClient, nodes_host
from envmatrix.launchers.slurm.jobs import make_block_job, slurm_options
from envmatrix.launchers.slurm.pending_block import SlurmBlock
from envmatrix.launchers.slurm.placement import nodes_of_block
from envmatrix.launchers.slurm.script import BlockJob, directives, script_with_order
from envmatrix.matrix import Slurm
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.batches import TrialGrouper
from envmatrix.trials.experiment import Experiment


def look_at_nodes(part: Slurm, engines: Sequence[Engine], span: int, progress: ProgressCallback) -> Host:
    """Check that this cluster can run the design, and return its nodes as one host.

    ``span`` is the number of nodes of a block.
    """
    refuse_engines_without_commands("slurm", engines)
    client = SlurmClient()
    known = client.partitions()
    nodes = client.nodes(part)
    host = nodes_host(nodes)
    partitions.check(known, part, span, _memory(part, nodes), part.time)
    usable = {node.name for node in nodes if node.usable}
    if len(usable) < span:
        raise InputError(
            f"a workload is spread over {span} nodes, and {len(usable)} can be had: {', '.join(sorted(usable))}",
            remedy="set fewer `nodes` in the workload, or allow more with --partition, --constraint and --nodelist",
        )
    for node in nodes:
        if not node.usable:
            progress(f"node {node.name} is left out: it is {node.state}{f' ({node.reason})' if node.reason else ''}")
    _check_python(client, part, nodes, span)
    job = BlockJob("envmatrix", BlockOrder("", "/", 1, ()), Path(), part, {})
    if refusal := client.refusal("\n".join(["#!/bin/sh", *directives(job, span, part.time or 60.0), ""])):
        raise InputError(
            f"Slurm would refuse a job: {refusal}",
            remedy="check --partition, --account, --constraint and --gpus, and the design's `slurm:` part",
        )
    return host


def _check_python(client: SlurmClient, part: Slurm, nodes: Sequence[Node], span: int) -> None:
    """Reject nodes without a Python that can start a block. Only as many idle nodes are asked as will be used."""
    idle = [node.name for node in nodes if node.state == "idle"][: max(part.nodes, span)]
    report_line = 'echo "no python on $SLURMD_NODENAME"; exit'
    output = client.run_now(part, idle, "\n".join(find_lines(part.modules, ":", f"{{ {report_line}; }}")))
    nodes_without_python = sorted(set(re.findall(r"no python on (\S+)", output)))
    if nodes_without_python:
        raise InputError(
            f"node {nodes_without_python[0]} has no Python 3.9 or later, which starts the trials there",
            remedy="name a module that has one (`--modules`), or choose other nodes (`--constraint`, `--nodelist`)",
        )


def _memory(part: Slurm, nodes: Sequence[Node]) -> int:
    """Return how many bytes of a node's memory a block requests."""
    return part.memory or min((node.memory_bytes for node in nodes if node.usable), default=0)


def check_block(part: Slurm, span: int, trials: int, in_turns: int, limit_s: float) -> None:
    """Reject blocks that could take longer than every requested partition allows."""
    client = SlurmClient()
    if not part.time and (known := client.partitions()):
        most_s = most_seconds(trials, in_turns, limit_s)
        partitions.check(known, part, span, _memory(part, client.nodes(part)), most_s)


def scripts(experiment: Experiment, how_many: int) -> list[str]:
    """Return the scripts of the first blocks exactly as they would be submitted."""
    nodes, span = slurm_options(experiment).nodelist, widest_workload(experiment)
    groups = TrialGrouper(experiment, lambda _: None)
    texts = []
    for slots in [experiment.plan.block(index) for index in range(min(how_many, experiment.plan.max_blocks))]:
        block = slots[0].block
        files: BlockFolder = block_folder(experiment, block)
        wanted = {slot.trial: slot for slot in slots if slot.arm.name not in experiment.run.skipped}
        pending = SlurmBlock(block, wanted, files, groups=group_names(slots, groups))
        parts, failed = make_parts(experiment, pending, groups, attempt=1)
        for trial in failed:
            raise EngineError(f"{trial.arm}: {trial.reason}")
        node = nodes_of_block(block, nodes, span)
        texts.append(script_with_order(make_block_job(experiment, block, parts, 1, node=node)))
    return texts
