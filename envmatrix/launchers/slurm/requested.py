"""What is asked of the cluster before anything is submitted: its nodes, and the scripts of a dry run."""

from __future__ import annotations

from collections.abc import Sequence

from envmatrix.engines.base import Engine
from envmatrix.errors import EngineError, InputError
from envmatrix.host import Host
from envmatrix.launchers.base import check_commands
from envmatrix.launchers.slurm.client import SlurmClient, nodes_host
from envmatrix.launchers.slurm.files import BlockFolder
from envmatrix.launchers.slurm.flight import Flight
from envmatrix.launchers.slurm.jobs import (
    block_folder,
    group_names,
    make_block_job,
    make_parts,
    slurm_options,
    widest,
)
from envmatrix.launchers.slurm.placing import nodes_of_block
from envmatrix.launchers.slurm.script import block_script
from envmatrix.matrix import Slurm
from envmatrix.say import Say
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.groups import Groups


def look_at_nodes(part: Slurm, engines: Sequence[Engine], span: int, say: Say) -> Host:
    """Return what the nodes look like to a trial, after checking that this cluster can run the design.

    ``span`` is how many nodes a block takes.
    """
    check_commands("slurm", engines)
    nodes = SlurmClient().nodes(part)
    host = nodes_host(nodes)
    usable = {node.name for node in nodes if node.usable}
    if len(usable) < span:
        raise InputError(
            f"a workload is spread over {span} nodes, and {len(usable)} can be had: {', '.join(sorted(usable))}",
            remedy="set fewer `nodes` in the workload, or allow more with --partition, --constraint and --nodelist",
        )
    for node in nodes:
        if not node.usable:
            say(f"node {node.name} is left out: it is {node.state}{f' ({node.reason})' if node.reason else ''}")
    return host


def scripts(experiment: Experiment, how_many: int) -> list[str]:
    """Return the scripts of the first blocks exactly as they would be submitted first."""
    nodes, span = slurm_options(experiment).nodelist, widest(experiment)
    groups = Groups(experiment, lambda _: None, elsewhere=True)
    texts = []
    for slots in [experiment.plan.block(index) for index in range(min(how_many, experiment.plan.max_blocks))]:
        block = slots[0].block
        files: BlockFolder = block_folder(experiment, block)
        wanted = {slot.trial: slot for slot in slots if slot.arm.name not in experiment.run.skipped}
        flight = Flight(block, wanted, files, groups=group_names(slots, groups))
        parts, failed = make_parts(experiment, flight, groups, attempt=1)
        for trial in failed:
            raise EngineError(f"{trial.arm}: {trial.reason}")
        node = nodes_of_block(block, nodes, span)
        texts.append(block_script(make_block_job(experiment, block, parts, 1, node=node)))
    return texts
