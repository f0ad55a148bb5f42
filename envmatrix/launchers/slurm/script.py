"""The batch job of a block and its script: its #SBATCH lines, and the lines that start the block runner."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.block.block_instructions import CANNOT_WRITE, BlockOrder, Part
from envmatrix.launchers.block_orders import block_order, block_seconds, job_prefix
from envmatrix.launchers.block_start import copy_package, start_lines
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.matrix import Slurm
from envmatrix.plan.export_lines import posix_quote
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.overrides import with_changed_values

#: Shell text for the job's id, as Slurm's commands take it: that of a task is ARRAY_TASK.
_JOB_ID = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-${SLURM_JOB_ID:-none}}"


@dataclass(frozen=True)
class BlockJob:
    """A batch job that executes an order with the block runner in ``package``.

    ``variables`` are exported by the script (PATH and HOME of the submitting user). ``node`` pins the job to the
    node (or nodes, with commas) that began the block; ``avoid`` lists nodes that failed.
    """

    job_name: str
    order: BlockOrder
    package: Path
    options: Slurm
    variables: Mapping[str, str]
    node: str = ""
    avoid: tuple[str, ...] = ()


def slurm_options(experiment: Experiment) -> Slurm:
    """Return the run's Slurm options: the design's ``slurm:`` part, overridden by the command line."""
    return with_changed_values(experiment.run.design.slurm, experiment.run.launcher_options)


def make_block_job(
    experiment: Experiment,
    block: int,
    parts: Iterable[Part],
    attempt: int,
    *,
    node: str = "",
    avoid: Iterable[str] = (),
) -> BlockJob:
    """Make the batch job of a block's parts."""
    options = slurm_options(experiment)
    order = block_order(experiment, block, parts, attempt, options.busy)
    return BlockJob(
        job_name=f"{job_prefix(experiment)}b{block:04d}",
        order=order,
        package=copy_package(Path(order.folder).parent),
        options=options,
        variables={name: os.environ.get(name, default) for name, default in SlurmClient.exports},
        node=node,
        avoid=tuple(sorted(set(avoid) - set(node.split(",")))),
    )


def block_script(job: BlockJob) -> str:
    """Return the script of a block's job. Raises InputError for a control character in a path that it contains."""
    order = job.order
    many = "one node" if order.nodes == 1 else f"up to {order.nodes} nodes"
    how = "some in turns" if any(part.turns for part in order.parts) else "one after the other"
    nodes = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d , -)'
    who = f'"$node" "{_JOB_ID}" "${{SLURM_RESTART_COUNT:-0}}"'
    lines = [
        "#!/bin/sh",
        f"# {_plain(order.title)}; attempt {order.attempt}: {len(order.trials)} trial(s), {how}, on {many}.",
        *directives(job, order.nodes, time_limit_s(job)),
        *(f"export {name}={posix_quote(value)}" for name, value in job.variables.items()),
        f"node={nodes if order.nodes > 1 else '${SLURMD_NODENAME:-$(uname -n)}'}",
        *start_lines(Path(order.folder), order.attempt, job.package, job.options.modules, who),
    ]
    return "\n".join([*lines, ""])


def block_array_script(job: BlockJob) -> str:
    """Return the script of an array job whose task N runs the script of block N.

    Jobs with the same text may be tasks of one array. Raises InputError as ``block_script`` does.
    """
    order = job.order
    title = order.title.rpartition(",")[0]
    alike = replace(job, job_name=job.job_name.rstrip(string.digits), order=replace(order, title=title))
    folder = posix_quote(str(Path(order.folder).parent))
    lines = [
        "#!/bin/sh",
        f"# {_plain(title)}; task N of this array runs block N.",
        *directives(alike, order.nodes, time_limit_s(job)),
        f'script={folder}/b$(printf %04d "$SLURM_ARRAY_TASK_ID")/script-{order.attempt}.sh',
        f'[ -r "$script" ] || exit {CANNOT_WRITE}',
        'exec /bin/sh "$script"',
    ]
    return "\n".join([*lines, ""])


def script_with_order(job: BlockJob) -> str:
    """Return the script of a job for display, followed by its order as comments."""
    return block_script(job) + "\n# The order:\n" + "".join(f"# {line}\n" for line in job.order.text(1).splitlines())


def time_limit_s(job: BlockJob) -> float:
    """Return the job's time limit: the requested one, or the most that its trials may take."""
    return job.options.time or block_seconds(job.order.parts)


def directives(job: BlockJob, nodes: int, seconds: float) -> list[str]:
    """Return the #SBATCH lines. They contain no paths, so no value needs Slurm's quoting."""
    options = job.options
    settings = [
        ("job-name", job.job_name),
        ("comment", re.sub(r"[^A-Za-z0-9._-]+", "-", job.order.title) or "envmatrix"),
        ("nodes", str(nodes)),
        ("ntasks", str(nodes)),
        ("exclusive", None),
        ("mem", "0" if options.memory is None else f"{max(1, options.memory // 2**20)}M"),
        ("time", slurm_time(seconds)),
        ("chdir", "/"),
        ("output", "/dev/null"),
        ("export", "ALL"),
    ]
    optional = [
        ("partition", options.partition),
        ("account", options.account),
        ("constraint", options.constraint),
        ("gres", f"gpu:{options.gpus}" if options.gpus else None),
        ("nodelist", job.node or None),
        ("exclude", ",".join(job.avoid) or None),
    ]
    settings += [(name, value) for name, value in optional if value]
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in settings]
    return [*lines, *(f"#SBATCH {option}" for option in options.options)]


def slurm_time(seconds: float) -> str:
    """Format a duration for Slurm, rounded up to whole minutes: 5400 -> 1:30:00."""
    minutes = max(1, -(-int(seconds) // 60))
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)
