"""A block that was submitted to Slurm, and decisions about a job that ended early (no side effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envmatrix.block.order import OTHER_NODE
from envmatrix.launchers.node_start import STOPPED
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import REQUEUED_BY_SOMEBODY, JobState

#: Final states of a job that are not the fault of the trial that was running.
EXCUSED = frozenset({"CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"})
#: Smaller errors of a clock (seconds) are not reported.
_CLOCK_S = 5.0


@dataclass
class SlurmBlock(PendingBlock):
    """A block that was submitted, and the job that runs it.

    ``node``: where it was sent; ``seen``: where Slurm last reported it; ``held``: it waits for a release.
    """

    job: str = ""
    node: str = ""
    seen: str = ""
    held: bool = False
    submitted: float = 0.0
    gone: int = 0
    told: str = ""
    stuck: int = 0

    @property
    def log(self) -> Path:
        """The file of what Slurm and the script say before the block runner begins."""
        return self.files.path / f"slurm-{self.attempt}.log"

    @property
    def places(self) -> list[str]:
        """The nodes that the job was sent to, or those it started on before it was requeued."""
        begun = self.files.begun(self.attempt)
        names = self.node or (begun.node if begun else "")
        return names.split(",") if names else []

    def kept(self, state: JobState) -> bool:
        """Return whether a person holds its job, from the start or by `scontrol requeuehold`; otherwise Slurm does."""
        began = self.files.begun(self.attempt) is not None
        return state.held_by_somebody or (state.held and began and state.reason == REQUEUED_BY_SOMEBODY)

    def state_in(self, queue: Sequence[JobState]) -> JobState | None:
        """Return the state of its job, None if Slurm does not know it.

        A task that is cancelled while it waits leaves no trace, not even in accounting, but its array does.
        """
        found = next((state for state in queue if state.job == self.job), None)
        array, is_task, _ = self.job.partition("_")
        if found or not is_task or self.files.begun(self.attempt):
            return found
        known = any(state.job.partition("_")[0] == array for state in queue)
        return JobState(self.job, "", "CANCELLED", "", "None") if known else None

    def news(self, state: JobState) -> str:
        """Return one line if the job's state or its reason to wait has changed, otherwise ''."""
        self.seen, self.held = state.node or self.seen, state.held
        waits = state.state == "PENDING"
        line = f"waits ({state.reason})" if waits else f"is {state.state.lower()} on {state.node}"
        if line == self.told:
            return ""
        self.told = line
        release = f"; `scontrol release {state.job}` lets it run" if state.held else ""
        return f"block {self.block}: job {state.job} {line}{release}"


@dataclass(frozen=True)
class Loss:
    """Why a job ended before its block was done. ``bad_node`` is the node to exclude, '' if none."""

    cause: str
    text: str
    excused: bool = False
    give_up: bool = False
    bad_node: str = ""


def not_started(state: JobState, nodes: Sequence[str], unusable: Mapping[str, str]) -> Loss:
    """Return why Slurm holds a job that it could not start; ``nodes``: the nodes it may have tried.

    Of several nodes, the one that is now unusable is blamed, because a failing Prolog drains its node.
    """
    bad = next((name for name in nodes if name in unusable), nodes[0] if len(nodes) == 1 else "")
    where = f" on node {bad}" if bad else ""
    known = f", which is {unusable[bad]}" if bad in unusable else ""
    return Loss("HELD", f"Slurm could not start it{where}{known}, and holds it ({state.reason})", True, bad_node=bad)


def explain_loss(
    state: JobState | None, past: str, stopped: tuple[int, str, str] | None, unusable: Mapping[str, str]
) -> Loss:
    """Return why a job ended early, from all available information.

    ``state``: the last state in the queue; ``past``: the state from accounting; ``stopped``: the record of the script.
    Each may be missing. ``unusable`` maps nodes that cannot take jobs to their state.
    """
    if stopped:
        status, node, path = stopped
        text = STOPPED.get(status, f"the script ended with status {status}")
        return Loss(
            f"exit {status}",
            f"{text}{f': {path}' if path else ''} (node {node})",
            True,
            bad_node="" if status == OTHER_NODE else node,
        )
    known = state.state if state and not state.alive else past
    nodes = state.node.split(",") if state else []
    bad = next((name for name in nodes if name in unusable), "")
    if known.startswith("CANCELLED"):
        return Loss("CANCELLED", "it was cancelled", True, give_up=not bad, bad_node=bad)
    if bad:
        return Loss(known or "NODE_FAIL", f"node {bad} is {unusable[bad]}", True, bad_node=bad)
    if not known:
        return Loss("UNKNOWN", "Slurm no longer knows it")
    if known == "COMPLETED":
        return Loss(known, "what was thrown away or set aside of it runs again", excused=True)
    reason = f", {state.reason}" if state and state.reason not in ("None", "") else ""
    return Loss(
        known,
        f"{known}{reason}",
        known in EXCUSED,
        bad_node=nodes[0] if known == "NODE_FAIL" and len(nodes) == 1 else "",
    )


def clock_offset(epoch: float, submitted: float, now: float) -> float:
    """Return by how many seconds a node's clock is certainly wrong (negative: behind); 0 if it may be right.

    A job starts after it was submitted and before its file is seen; only a time outside that range is wrong.
    """
    if epoch < submitted - _CLOCK_S:
        return epoch - submitted
    return epoch - now if epoch > now + _CLOCK_S else 0.0


def clock_words(node: str, offset: float) -> str:
    """Return the warning about a node's wrong clock."""
    direction: Literal["ahead of", "behind"] = "ahead of" if offset > 0 else "behind"
    return (
        f"the clock of node {node} is at least {abs(offset):.0f} s {direction} this machine's; when its trials "
        "started is by its own clock, how long they took is not affected"
    )
