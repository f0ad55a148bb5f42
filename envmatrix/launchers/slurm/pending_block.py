"""A block that is out, and what is to be done when its job has ended too early: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envmatrix.block.order import OTHER_NODE
from envmatrix.launchers.node_start import STOPPED
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import REQUEUED_BY_SOMEBODY, JobState

#: Ends of a job that are no fault of the trial that ran.
EXCUSED = frozenset({"CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"})
#: A clock that is off by less than this (seconds) is not worth a word.
_CLOCK_S = 5.0


@dataclass
class Flight(PendingBlock):
    """A block that is out, and the job that runs it.

    ``node`` is where it was sent, ``seen`` where Slurm last had it; ``held``: somebody keeps it from starting.
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
    def places(self) -> list[str]:
        """The nodes that the job was sent to, or that it has begun on (it was requeued then)."""
        begun = self.files.begun(self.attempt)
        names = self.node or (begun.node if begun else "")
        return names.split(",") if names else []

    def kept(self, state: JobState) -> bool:
        """Whether a person holds its job, before it began or by `scontrol requeuehold`; else Slurm does."""
        began = self.files.begun(self.attempt) is not None
        return state.held_by_somebody or (state.held and began and state.reason == REQUEUED_BY_SOMEBODY)

    def news(self, state: JobState) -> str:
        """Return one line when the job's state or what it waits for has changed, else ''."""
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
    """Why a job ended before its block was done. ``bad_node`` is the node that is to be left out, '' for none."""

    cause: str
    text: str
    excused: bool = False
    give_up: bool = False
    bad_node: str = ""


def not_started(state: JobState, nodes: Sequence[str], unusable: Mapping[str, str]) -> Loss:
    """Say why Slurm holds a job that it could not start; ``nodes`` are those that it may have tried.

    Of several, the one that is unusable since failed (a Prolog that fails drains its node).
    """
    bad = next((name for name in nodes if name in unusable), nodes[0] if len(nodes) == 1 else "")
    where = f" on node {bad}" if bad else ""
    known = f", which is {unusable[bad]}" if bad in unusable else ""
    return Loss("HELD", f"Slurm could not start it{where}{known}, and holds it ({state.reason})", True, bad_node=bad)


def explain_loss(
    state: JobState | None, past: str, stopped: tuple[int, str, str] | None, unusable: Mapping[str, str]
) -> Loss:
    """Say why a job ended too early, from whatever is known.

    ``state`` is the queue's last word and ``past`` that of accounting, either may be missing; ``stopped`` is what
    the script itself left; ``unusable`` maps nodes that cannot take jobs to their state.
    """
    if stopped:
        status, node, path = stopped
        text = STOPPED.get(status, f"the script ended with status {status}")
        return Loss(f"exit {status}", f"{text}{f': {path}' if path else ''} (node {node})", True,
                    bad_node="" if status == OTHER_NODE else node)  # fmt: skip
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
    return Loss(known, f"{known}{reason}", known in EXCUSED,
                bad_node=nodes[0] if known == "NODE_FAIL" and len(nodes) == 1 else "")  # fmt: skip


def clock_offset(epoch: float, submitted: float, now: float) -> float:
    """Return how many seconds a node's clock is certainly off (behind: negative), 0 when it may be right.

    A job begins after it was submitted and before its file is seen; only a time outside of that is wrong.
    """
    if epoch < submitted - _CLOCK_S:
        return epoch - submitted
    return epoch - now if epoch > now + _CLOCK_S else 0.0


def clock_words(node: str, offset: float) -> str:
    """Tell that a node's clock is off."""
    direction: Literal["ahead of", "behind"] = "ahead of" if offset > 0 else "behind"
    return (
        f"the clock of node {node} is at least {abs(offset):.0f} s {direction} this machine's; when its trials "
        "started is by its own clock, how long they took is not affected"
    )
