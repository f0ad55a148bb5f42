"""Every reason for which Slurm delays a job: whether waiting helps, and otherwise what to change."""

import pytest

from envmatrix.errors import InputError
from envmatrix.launchers.slurm.partitions import check, read_partitions
from envmatrix.launchers.slurm.reasons import needs_unavailable_nodes, remedy, waits_for_own
from envmatrix.matrix import Slurm

#: Resources that Slurm counts, as in its reason codes (src/common/job_state_reason.c of versions 20 to 26).
KINDS = ("BB", "Billing", "Cpu", "Energy", "GRES", "License", "Mem", "Memory", "Node", "Unknown")
NEVER = {
    **{f"{who}Max{kind}Per{what}{end}": "whole nodes" for who in ("Assoc", "QOS") for kind in KINDS
       for what in ("Job", "Node") for end in ("", "Limit")},
    **{f"{who}Max{kind}MinutesPerJob{end}": "--time" for who in ("Assoc", "QOS") for kind in KINDS
       for end in ("", "Limit")},
    **{f"{who}Grp{kind}Minutes{end}": "is spent" for who in ("Assoc", "QOS")
       for kind in (*KINDS, "CPU") for end in ("", "Limit")},
    **{f"QOSMin{kind}": "whole nodes" for kind in KINDS},
    **{f"{who}MaxMem{end}Per{what}": "set `memory`" for who in ("Assoc", "QOS") for end in ("", "ory")
       for what in ("Job", "Node")},
    **{f"{who}MaxNodePer{what}{end}": "number of nodes" for who in ("Assoc", "QOS") for what in ("Job", "Node")
       for end in ("", "Limit")},
    **{f"{who}MaxMem{end}Per{what}Limit": "set `memory`" for who in ("Assoc", "QOS") for end in ("", "ory")
       for what in ("Job", "Node")},
    "QOSMinCpuNotSatisfied": "whole nodes", "QOSMinMem": "set `memory`", "QOSMinMemory": "set `memory`",
    "QOSMinNode": "number of nodes",
    "PartitionTimeLimit": "--time", "QOSMaxWallDurationPerJobLimit": "--time",
    "AssocMaxWallDurationPerJobLimit": "--time", "AssociationTimeLimit": "--time", "QOSTimeLimit": "--time",
    "PartitionNodeLimit": "number of nodes", "MaxMemPerLimit": "set `memory`",
    "AssocGrpWallLimit": "is spent", "QOSGrpWallLimit": "is spent",
    "InvalidAccount": "--account", "AccountNotAllowed": "--account", "InvalidQOS": "--qos", "QOSNotAllowed": "--qos",
    "BadConstraints": "no node fits", "PartitionConfig": "does not allow", "DependencyNeverSatisfied": "options",
    "DeadLine": "options", "ReservationDeleted": "options", "ReservationInvalid": "options",
    "BurstBufferOperation": "options",
    "Job's account not permitted to use this partition (short allows physics not me)": "--account",
    "Job's account not known, so it can't use this partition (short allows physics)": "--account",
    "Job's QOS not permitted to use this partition (short allows high not normal)": "--qos",
    "Reservation night, which this job was running under, has ended": "options",
    "PartitionTimeLimit, more": "--time",
}  # fmt: skip
#: Reasons that disappear: when other jobs end, at a given time, or once an administrator has finished.
WAITS = {
    *(f"{who}Grp{kind}{end}" for who in ("Assoc", "QOS") for kind in (*KINDS, "Jobs", "SubmitJobs")
      for end in ("", "Limit")),
    *(f"{who}Grp{kind}RunMinutes{end}" for who in ("Assoc", "QOS") for kind in (*KINDS, "CPU")
      for end in ("", "Limit")),
    *(f"Max{kind}PerAccount" for kind in (*KINDS, "Jobs", "SubmitJobs")),
    *(f"Max{kind}RunMinsPerAccount" for kind in KINDS),
    "None", "Prolog", "Priority", "Dependency", "Resources", "PartitionDown", "PartitionInactive", "JobHeldAdmin",
    "JobHeldUser", "BeginTime", "Licenses", "AssociationJobLimit", "AssociationResourceLimit", "Reservation",
    "ReqNodeNotAvail", "ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail, UnavailableNodes:n1",
    "FrontEndDown", "SchedDefer", "NodeDown", "SystemFailure", "JobLaunchFailure", "NonZeroExitCode", "RaisedSignal",
    "TimeLimit", "InactiveLimit", "QOSUsageThreshold", "QOSJobLimit", "QOSResourceLimit", "Cleaning",
    "AssocMaxSubmitJobLimit", "QOSMaxSubmitJobPerUserLimit", "JobHoldMaxRequeue", "JobArrayTaskLimit",
    "BurstBufferResources", "BurstBufferStageIn", "PowerNotAvail", "PowerReserved", "AccountingPolicy", "FedJobLock",
    "OutOfMemory", "Constraints", "MaxPoweredUpNodes", "MpiPortsBusy", "NvidiaImexChannels", "AssocMaxJobsLimit",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
}  # fmt: skip
OF_USER = {
    *(f"QOSMax{kind}PerUser{end}" for kind in KINDS for end in ("", "Limit")),
    *(f"Max{kind}RunMinsPerUser" for kind in KINDS), "QOSMaxJobsPerUserLimit", "AssocMaxJobsLimit",
}  # fmt: skip


@pytest.mark.parametrize(("reason", "told"), NEVER.items())
def test_what_no_waiting_cures_has_its_remedy(reason, told):
    assert told in (remedy(reason) or "")
    assert not waits_for_own(reason)


@pytest.mark.parametrize("reason", sorted(WAITS | OF_USER))
def test_what_goes_away_is_waited_for(reason):
    assert remedy(reason) is None


def test_what_a_users_other_jobs_hold_and_what_nodes_hold_are_told_apart():
    assert {reason for reason in WAITS | OF_USER if waits_for_own(reason)} == OF_USER
    assert {reason.split()[0] for reason in WAITS if needs_unavailable_nodes(reason)} == {"ReqNodeNotAvail,", "Nodes"}
    assert not needs_unavailable_nodes("ReqNodeNotAvail, Reserved for maintenance")


SHOWN = """\
PartitionName=debug AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-2] State=UP \
MaxMemPerNode=UNLIMITED
PartitionName=short Default=NO MaxNodes=1 MaxTime=00:30:00 MinNodes=0 State=UP MaxMemPerNode=1000
PartitionName=week Default=NO MaxNodes=8 MaxTime=7-00:00:00 MinNodes=2 State=UP MaxMemPerNode=UNLIMITED
PartitionName=old Default=NO MaxNodes=8 MaxTime=1-12:30:00 MinNodes=0 State=DRAIN MaxMemPerNode=UNLIMITED
"""
MIB = 2**20


def test_partitions_are_read_with_their_limits():
    debug, short, week, old = read_partitions(SHOWN)
    assert (debug.default, debug.seconds, debug.most_nodes, debug.memory_bytes) == (True, None, None, None)
    assert (short.seconds, short.most_nodes, short.memory_bytes) == (1800, 1, 1000 * MIB)
    assert (week.seconds, week.fewest_nodes) == (7 * 86400, 2)
    assert (old.state, old.seconds) == ("DRAIN", 36.5 * 3600)


@pytest.mark.parametrize(
    ("part", "span", "memory", "seconds", "said", "do"),
    [
        ({"partition": "short"}, 1, 1, 1860, "may take 31m, and partition short allows 30m", "--partition: debug"),
        ({"partition": "short"}, 2, 1, 60, r"takes 2 node\(s\), and partition short allows 0 to 1", "week"),
        ({"partition": "week"}, 1, 1, 60, "partition week allows 2 to 8", "nodes"),
        ({"partition": "short"}, 1, 1001 * MIB, 60, "asks for 1001 MiB .* allows 1000 MiB", "memory: 1000MiB"),
        ({"partition": "old"}, 1, 1, 60, "partition old is DRAIN", "debug"),
        ({"partition": "short,old"}, 1, 1, 1860, "partition short allows 30m", "debug"),
    ],
)
def test_what_can_start_in_no_partition_is_refused(part, span, memory, seconds, said, do):
    with pytest.raises(InputError, match=said) as refused:
        check(read_partitions(SHOWN), Slurm(**part), span, memory, seconds)
    assert do in (refused.value.remedy or "")


def test_what_can_start_somewhere_is_not_refused():
    known = read_partitions(SHOWN)
    check(known, Slurm(), 2, 10**15, 10**9)
    check(known, Slurm(partition="short"), 1, 1000 * MIB, 1800)
    check(known, Slurm(partition="short"), 1, 1000 * MIB, None)
    check(known, Slurm(partition="short,week"), 2, 1, 86400)
    check(known, Slurm(partition="short", options=("--qos=long",)), 1, 1, 86400)
    check([], Slurm(partition="short"), 1, 1, 86400)
