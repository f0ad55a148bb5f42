"""Limits of Slurm's partitions, checked against the needs of a block before anything is built."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envmatrix.durations_and_sizes import as_duration
from envmatrix.errors import InputError
from envmatrix.matrix import Slurm


@dataclass(frozen=True)
class Partition:
    """A partition as shown by scontrol; None: no limit. ``memory_bytes`` is per node."""

    name: str
    default: bool
    state: str
    seconds: float | None
    fewest_nodes: int
    most_nodes: int | None
    memory_bytes: int | None

    def problem(self, part: Slurm, span: int, memory_bytes: int, seconds: float | None) -> tuple[str, str] | None:
        """Return why no block can ever start here and what to do about it; None if one can."""
        if self.state != "UP":
            return f"partition {self.name} is {self.state}: no job starts there", "wait until it is up"
        if any(option.partition("=")[0] == "--qos" for option in part.options):
            return None  # a QOS may override a partition's limits
        if span < self.fewest_nodes or (self.most_nodes is not None and span > self.most_nodes):
            allowed = f"{self.fewest_nodes} to {'any number' if self.most_nodes is None else self.most_nodes}"
            return (
                f"a block takes {span} node(s), and partition {self.name} allows {allowed}",
                "set other `nodes` in the workload",
            )
        if self.memory_bytes is not None and memory_bytes > self.memory_bytes:
            return (
                f"a block asks for {memory_bytes // 2**20} MiB of a node, and partition {self.name} allows "
                f"{self.memory_bytes // 2**20} MiB",
                f"set `memory: {self.memory_bytes // 2**20}MiB` or less in the design's `slurm:` part",
            )
        if self.seconds is not None and seconds is not None and seconds > self.seconds:
            allowed = as_duration(self.seconds)
            return (
                f"a block may take {as_duration(seconds)}, and partition {self.name} allows {allowed}",
                f"if its trials take less: `--time {allowed}`; else a shorter `trial_limit` or fewer environments",
            )
        return None


def read_partitions(text: str) -> list[Partition]:
    """Parse the output of ``scontrol --oneliner show partition``."""
    rows = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines())
    return [_partition(words) for words in rows if "PartitionName" in words]


def _partition(words: dict[str, str]) -> Partition:
    memory = _number(words.get("MaxMemPerNode", ""))
    return Partition(
        name=words["PartitionName"],
        default=words.get("Default") == "YES",
        state=words.get("State", "UP"),
        seconds=_seconds(words.get("MaxTime", "")),
        fewest_nodes=_number(words.get("MinNodes", "")) or 0,
        most_nodes=_number(words.get("MaxNodes", "")),
        memory_bytes=None if memory is None else memory * 2**20,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _seconds(text: str) -> float | None:
    """Parse [DAYS-]HOURS:MINUTES:SECONDS; None for UNLIMITED."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def check(limits: Sequence[Partition], part: Slurm, span: int, memory_bytes: int, seconds: float | None = None) -> None:
    """Reject a block that can start in none of the requested partitions, which exist (if none: the default one).

    ``span`` is the number of nodes of a block, ``memory_bytes`` its memory per node, ``seconds`` its time limit
    (None: not known yet).
    """
    problems = {partition.name: partition.problem(part, span, memory_bytes, seconds) for partition in limits}
    defaults = (partition.name for partition in limits if partition.default)
    names = set(part.partition.split(",") if part.partition else defaults)
    chosen = [problem for name, problem in problems.items() if name in names]
    # With no known limits, the queue will report a violation.
    if first := chosen[0] if chosen and all(chosen) else None:
        others = ", ".join(name for name, problem in problems.items() if not problem)
        raise InputError(first[0], remedy=f"{first[1]}; or --partition: {others}" if others else first[1])
