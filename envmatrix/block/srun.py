"""Trials that Slurm's ``srun`` starts: one task on each node; the first node runs the block."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from envmatrix.block import node_checks
from envmatrix.block.block_instructions import BlockOrder, TrialOrder
from envmatrix.block.process_supervisor import confine, restore_default_signals

#: Seconds for a trial's tasks to end on all nodes when its time is up.
GRACE_S = 30.0
_ANSWER_S = 300.0
_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Nodes:
    """The nodes of a job, in the order in which trials use them, and the order file that their tasks read."""

    names: Sequence[str]
    order: Path

    def package_task_argv(
        self, count: int, *words: str, output: Path | None = None, options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs a task of this package on each of the first ``count`` nodes.

        Unless ``options`` have --cpu-bind, Slurm binds no CPUs: by its default, a task would get one core.
        """
        binding = () if any(word.startswith("--cpu-bind=") for word in options) else ("--cpu-bind=none",)
        nodes = ",".join(self.names[:count])
        return [
            *("srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--mpi=none", *binding, *options),
            *("--wait=0", f"--nodelist={nodes}", "--kill-on-bad-exit=0", "--input=none"),
            *((f"--output={output}",) if output else ()),
            *(sys.executable, "-I", "-S", "-B", str(_PACKAGE), words[0], str(self.order), *words[1:]),
        ]

    def inspect_all(self) -> list[dict[str, Any]]:
        """Return a report on every node; an empty list if a task did not start on each of them."""
        argv = self.package_task_argv(len(self.names), "look")
        finished = subprocess.run(argv, stdout=subprocess.PIPE, timeout=_ANSWER_S, check=False)
        reports = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith(b"{")]
        return sorted(reports, key=lambda seen: int(seen["rank"])) if len(reports) == len(self.names) else []

    def meeting_place(self, job: str) -> str:
        """Return an address and port of the first node: the address that Slurm uses, and a port that is free."""
        argv = ["scontrol", "--oneliner", "show", "node", self.names[0]]
        description = subprocess.run(argv, stdout=subprocess.PIPE, timeout=_ANSWER_S, text=True, check=False).stdout
        address = re.search(r" NodeAddr=(\S+)", description)
        port = 20000 + int(job) * 16 % 10000  # int() passes over the _ of a task (7_3)
        while any(f":{port:04X} " in table for table in _socket_tables()):
            port += 1
        return f"{address[1] if address else self.names[0]}:{port}"


def _socket_tables() -> list[str]:
    files = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    return [file.read_text(encoding="ascii") for file in files if file.exists()]


def inspect_task(order: BlockOrder) -> int:
    """Print a report on this node: what is missing there, and what others use of it."""
    report = {
        "rank": os.environ["SLURM_PROCID"],
        "node": os.environ["SLURMD_NODENAME"],
        "seen": node_checks.measure_node_load(),
    }
    print(json.dumps({**report, "missing": node_checks.first_missing([order.folder, *order.needs])}))
    return 0


def rank_task(order: BlockOrder, name: str, meet: str) -> NoReturn:
    """Replace this process by a trial's process on this node."""
    part, trial = next((part, trial) for part in order.parts for trial in part.trials if trial.name == name)
    os.chdir(order.folder_of(part, trial) / "work")
    restore_default_signals()
    confine(*trial.place.plain())
    rank, node = os.environ["SLURM_PROCID"], os.environ["SLURMD_NODENAME"]
    argv = [*trial.argv, *([f"--node-rank={rank}", f"--node-name={node}", f"--meet={meet}"] if meet else [])]
    os.execvpe(argv[0], argv, trial_variables(trial, os.environ["ENVMATRIX_TRIAL"]))  # noqa: S606 - no shell


def trial_variables(trial: TrialOrder, mark: str) -> dict[str, str]:
    """Return the whole environment of a trial's process."""
    kept_variables = {name: os.environ[name] for name in trial.keep if name in os.environ}
    return {"ENVMATRIX_TRIAL": mark, **kept_variables, **trial.env}
