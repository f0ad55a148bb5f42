"""Why a job waits, as Slurm says it, and what to change if no waiting lets it start.

The words are those of https://slurm.schedmd.com/job_reason_codes.html, and the sentences that slurmctld has for some.
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

#: What a job waits for that never comes, and what to change; the first that matches counts.
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
    """Return what to change if a job that waits for this reason never starts, None if it may start later."""
    first = reason if " " in reason.split(",")[0] else reason.split(",")[0]
    return next((told for pattern, told in _NEVER if re.fullmatch(pattern, first)), None)


def waits_for_own(reason: str) -> bool:
    """Whether it waits until other jobs of the same user have ended; without any, it exceeds a limit by itself."""
    return bool(_OF_USER.fullmatch(reason.split(",")[0]))


def waits_for_nodes(reason: str) -> bool:
    """Whether nodes that it needs are down; it waits for ever only if too few others are left."""
    return bool(_NODES_DOWN.match(reason))
