"""Slurm's reasons for a waiting job, with a remedy for those that never resolve by waiting.

The reasons are those of https://slurm.schedmd.com/job_reason_codes.html, and some whole sentences of slurmctld.
"""

from __future__ import annotations

import re

_TIME = (
    "ask for less time: `--time`, a shorter `trial_limit`, or fewer environments; or take another partition or QOS "
    "(`--partition`, `options: --qos=NAME`)"
)
_NODES = "spread the workload over another number of nodes, or take another partition or QOS"
_MEMORY = (
    "set `memory` in the design's `slurm:` part (without it a job asks for all of a node), or take another partition"
)
SIZE = "a block takes whole nodes: take a partition or QOS that allows that, or other nodes (`--constraint`)"
_SPENT = "the time that this account or QOS may use is spent: take another one (`--account`), or ask who grants it"
_ACCOUNT = "choose an account that may use this partition: `sacctmgr show associations user=$USER`, then `--account`"
_QOS = "choose a QOS that you and the partition may use, with `options: --qos=NAME` in the design's `slurm:` part"
_REQUEST = "no node fits what was asked for: check --constraint, --gpus, `memory` and `options`"
_PARTITION = "the partition does not allow such a job: `scontrol show partition` shows its limits; take another one"
_OPTIONS = "check `options` in the design's `slurm:` part"

#: Reasons that never resolve, each with what to change; the first match counts.
_NEVER: tuple[tuple[str, str], ...] = (
    (r"PartitionTimeLimit|\w+WallDurationPerJobLimit|(Assoc|QOS)Max\w+MinutesPerJob(Limit)?", _TIME),
    (r"(Association|QOS)TimeLimit", _TIME),
    (r"PartitionNodeLimit|(Assoc|QOS)MaxNodePer(Job|Node)(Limit)?|QOSMinNode", _NODES),
    (r"MaxMemPerLimit|(Assoc|QOS)MaxMem(ory)?Per(Job|Node)(Limit)?|QOSMinMem(ory)?", _MEMORY),
    (r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+", SIZE),
    (r"(Assoc|QOS)Grp(?!\w+Run)(\w+Minutes(Limit)?|WallLimit)", _SPENT),
    (r"InvalidAccount|AccountNotAllowed|Job's account not .*use this partition.*", _ACCOUNT),
    (r"InvalidQOS|QOSNotAllowed|Job's QOS not .*use this partition.*", _QOS),
    (r"BadConstraints", _REQUEST),
    (r"PartitionConfig", _PARTITION),
    (r"DependencyNeverSatisfied|DeadLine|BurstBufferOperation", _OPTIONS),
    (r"Reservation(Deleted|Invalid)|Reservation .*(deleted|ended|invalid).*", _OPTIONS),
)
_NODES_DOWN = re.compile(r"ReqNodeNotAvail, ?UnavailableNodes:|Nodes required for job are DOWN")
_OF_USER = re.compile(r"(QOSMax|Max)(?!Submit)\w+PerUser(Limit)?|AssocMaxJobsLimit")


def remedy(reason: str) -> str | None:
    """Return what to change if a job with this reason never starts; None if it may start later."""
    first = reason if " " in reason.split(",")[0] else reason.split(",")[0]
    return next((advice for pattern, advice in _NEVER if re.fullmatch(pattern, first)), None)


def waits_for_own(reason: str) -> bool:
    """Return whether it waits for other jobs of the same user; if there are none, the job itself exceeds a limit."""
    return bool(_OF_USER.fullmatch(reason.split(",")[0]))


def waits_for_nodes(reason: str) -> bool:
    """Return whether nodes that it needs are down; it never starts only if too few others are left."""
    return bool(_NODES_DOWN.match(reason))
