"""Decisions about a block that was submitted to Slurm, and about a job that ended early (no side effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from envmatrix.launchers.batch_system import QueuedJob
from envmatrix.launchers.block_start import stopped_loss
from envmatrix.launchers.pending_block import Loss, PendingBlock
from envmatrix.launchers.slurm.client import REQUEUED_BY_SOMEBODY, queued_job

#: Final states of a job that are not the fault of the trial that was running.
EXCUSED = frozenset({"CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"})
#: Smaller errors of a clock (seconds) are not reported.
_CLOCK_S = 5.0


def log_file(pending: PendingBlock) -> Path:
    """Return the file of what Slurm and the script say before the block runner begins."""
    return pending.files.path / f"slurm-{pending.attempt}.log"


def job_nodes(pending: PendingBlock) -> list[str]:
    """Return the nodes that a job was sent to, or those it started on before it was requeued."""
    begun = pending.files.begun(pending.attempt)
    names = pending.node or (begun.node if begun else "")
    return names.split(",") if names else []


def held_by_somebody(pending: PendingBlock, job: QueuedJob) -> bool:
    """Return whether a person holds a job, from the start or by `scontrol requeuehold`; otherwise Slurm does."""
    requeued = job.reason == REQUEUED_BY_SOMEBODY and pending.files.begun(pending.attempt) is not None
    return bool(job.release) and (requeued or job.reason in ("JobHeldUser", "JobHeldAdmin"))


def job_of(pending: PendingBlock, queue: Sequence[QueuedJob]) -> QueuedJob | None:
    """Return the job of a block, None if Slurm does not know it.

    A task that is cancelled while it waits leaves no trace, not even in accounting, but its array does.
    """
    known = next((job for job in queue if job.job == pending.job), None)
    array, is_task, _ = pending.job.partition("_")
    if known or not is_task or pending.files.begun(pending.attempt):
        return known
    array_is_known = any(job.job.partition("_")[0] == array for job in queue)
    return queued_job(pending.job, "", "CANCELLED", "", "None") if array_is_known else None


def loss_of_held_job(job: QueuedJob, nodes: Sequence[str], unusable: Mapping[str, str]) -> Loss:
    """Return why Slurm holds a job that it could not start; ``nodes``: the nodes it may have tried.

    Of several nodes, the one that is now unusable is blamed, because a failing Prolog drains its node.
    """
    bad = next((name for name in nodes if name in unusable), nodes[0] if len(nodes) == 1 else "")
    where = f" on node {bad}" if bad else ""
    state = f", which is {unusable[bad]}" if bad in unusable else ""
    return Loss("HELD", f"Slurm could not start it{where}{state}, and holds it ({job.reason})", True, bad_node=bad)


def explain_loss(
    job: QueuedJob | None, past: str, stopped: tuple[int, str, str] | None, unusable: Mapping[str, str]
) -> Loss:
    """Return why a job ended early, from all available information.

    ``job``: as it was last in the queue; ``past``: the state from accounting; ``stopped``: the record of the script.
    Each may be missing. ``unusable`` maps nodes that cannot take jobs to their state.
    """
    if stopped:
        return stopped_loss(*stopped)
    final_state = job.state if job and not job.alive else past
    nodes = job.host.split(",") if job else []
    bad = next((name for name in nodes if name in unusable), "")
    if final_state.startswith("CANCELLED"):
        return Loss("CANCELLED", "it was cancelled", True, give_up=not bad, bad_node=bad)
    if bad:
        return Loss(final_state or "NODE_FAIL", f"node {bad} is {unusable[bad]}", True, bad_node=bad)
    if not final_state:
        return Loss("UNKNOWN", "Slurm no longer knows it")
    if final_state == "COMPLETED":
        return Loss(final_state, "what was thrown away or set aside of it runs again", excused=True)
    reason = f", {job.reason}" if job and job.reason not in ("None", "") else ""
    failed_node = nodes[0] if final_state == "NODE_FAIL" and len(nodes) == 1 else ""
    return Loss(final_state, f"{final_state}{reason}", final_state in EXCUSED, bad_node=failed_node)


def clock_offset(epoch: float, submitted: float, now: float) -> float:
    """Return by how many seconds a node's clock is certainly wrong (negative: behind); 0 if it may be right.

    A job starts after it was submitted and before its file is seen; only a time outside that range is wrong.
    """
    if epoch < submitted - _CLOCK_S:
        return epoch - submitted
    return epoch - now if epoch > now + _CLOCK_S else 0.0


def clock_words(node: str, offset: float) -> str:
    """Return the warning about a node's wrong clock."""
    return (
        f"the clock of node {node} is at least {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} this "
        "machine's; when its trials started is by its own clock, how long they took is not affected"
    )
