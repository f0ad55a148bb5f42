"""A CPU quota of an environment: how levels are combined, and whether a trial had it."""

import pytest

from envmatrix.api.machine_checks import check_cpu_quota, tightest_quota
from envmatrix.evidence.settings_fingerprint import settled
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.matrix import load
from envmatrix.plan.environment import resolve_environment
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.report_data import summarise_measurements
from envmatrix.stats.measurements import fold_trials
from envmatrix.trials.execution import process_limits
from envmatrix.trials.trial_evidence_verification import verify_evidence
from tests.synthetic import Machine, make_plan, make_run, make_trials

MATRIX = """
version: 2
include: envmatrix:quota
factors:
  pod: {none: {}, small: {cpu_quota: 0.5}}
environments: {baseline: {}, both: {cpu-quota: "1", pod: small}}
workloads: {w: {command: [python, x.py]}}
designs: {default: {workloads: w}}
"""


@pytest.fixture
def matrix(tmp_path):
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return load(tmp_path / "matrix.yaml")


def test_the_least_of_several_quotas_counts_and_its_process_takes_no_turns(matrix):
    both, baseline = resolve_environment(matrix, "both", {}), resolve_environment(matrix, "baseline", {})
    assert (both.cpu_quota, both.turns, process_limits(both, 9.0).cpu_quota) == (0.5, False, 0.5)
    assert (baseline.cpu_quota, baseline.turns) == (None, True)


@pytest.mark.parametrize(("limit", "holds"), [(1.0, True), (None, False), (2.0, False)])
def test_a_quota_that_did_not_hold_is_found_out(matrix, limit, holds):
    seen = read_evidence({"sandbox": {"cgroup": {"cpu_limit": limit}}, "variables": {}, "preloaded": {}})
    said = verify_evidence(resolve_environment(matrix, "cpu-quota-1", {}), seen)
    assert (not said.wrong and not said.unproven) == holds, said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"sandbox": {"cgroup": {"cpu_limit": 1.0}}}, {"sandbox": {"cgroup": {"cpu_limit": None}}}),
        ({"system": {"python": "3.13.5", "gil": True}}, {"system": {"python": "3.13.5", "gil": False}}),
        ({"system": {"python": "3.12.1"}}, {"system": {"python": "3.13.5"}}),
    ],
)
def test_a_quota_or_another_python_is_no_no_op(one, other):
    assert settled(read_evidence(one)) != settled(read_evidence(other))


def group_at(root, group, **files):
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


STAT = "nr_periods 200\nnr_throttled 190\nthrottled_time 5\n"
V1 = {"cpu__cfs_quota_us": "30000\n", "cpu__cfs_period_us": "100000\n", "cpu__stat": STAT}
NO_V1 = {"cpu__cfs_quota_us": "-1\n", "cpu__cfs_period_us": "100000\n", "cpu__stat": "nr_periods 0\nnr_throttled 0\n"}
V2, NO_V2 = (
    {"cpu__max": "30000 100000\n", "cpu__stat": STAT},
    {"cpu__max": "max 100000\n", "cpu__stat": "usage_usec 3\n"},
)


@pytest.mark.parametrize(
    ("membership", "groups", "by"),
    [
        ("0::/", {"": V2}, "/sys/fs/cgroup"),  # a pod's own group is at the mount's root
        ("0::/a.slice/b.scope", {"a.slice": V2, "a.slice/b.scope": NO_V2}, "/sys/fs/cgroup/a.slice"),
        ("0::/a.slice/b.scope", {"a.slice": NO_V2, "a.slice/b.scope": V2}, "/sys/fs/cgroup/a.slice/b.scope"),
        ("3:cpu,cpuacct:/job/step", {"cpu,cpuacct/job": V1, "cpu,cpuacct/job/step": NO_V1}, "cpu,cpuacct/job"),
        ("3:cpuacct,cpu:/docker/0123", {"cpu": V1}, "/sys/fs/cgroup/cpu"),  # the host's path, which does not exist here
        ("", {"cpu": V1}, "/sys/fs/cgroup/cpu"),
        ("0::/a", {"a": NO_V2}, None),
        ("3:cpu:/a", {"cpu/a": NO_V1, "cpu": NO_V1}, None),
    ],
)
def test_doctor_names_a_quota_of_the_own_group_and_of_those_above_it(tmp_path, membership, groups, by):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{membership}\n" if membership else "")
    for group, files in groups.items():
        group_at(tmp_path, group, **files)
    found = list(check_cpu_quota(tmp_path))
    assert [one.state for one in found] == ["bad"] * bool(by)
    if by:
        assert found[0].found.endswith(f"{by}; the limit was reached in 95% of its periods")
        assert found[0].found.startswith("the CPU time of 0.3 CPUs, set by /sys/fs/cgroup")


def test_the_tightest_of_several_quotas_is_told(tmp_path):
    group_at(tmp_path, "", **{**V2, "cpu__max": "150000 100000"})
    group_at(tmp_path, "a", **V2)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a\n")
    found = tightest_quota(tmp_path)
    assert (found.cpus, found.group) == (0.3, "/sys/fs/cgroup/a")


@pytest.mark.parametrize(
    ("limit", "of", "told", "first"),
    [
        (0.3, (100, 100), True, True),
        (0.3, (100, 1), True, False),
        (None, (0, 0), False, False),
        (2.0, (9, 0), False, False),
    ],
)
def test_a_report_names_the_quota_around_its_trials_and_begins_with_one_that_held_them_back(limit, of, told, first):
    plan = make_plan(("fast",))

    def held(trial):
        group = {"cpu_limit": limit, "cpu_periods": of[0], "throttled_periods": of[1]}
        trial.document["evidence"]["sandbox"] = {"cgroup": group}
        seconds = trial.document["metrics"]["training_s"]
        trial.document["metrics"].update(
            user_s=0.3 * seconds, system_s=0.0, run_delay_s=0.7 * seconds, throttled_s=0.7 * seconds, others_s=seconds
        )
        return trial

    machine = Machine({"fast": 1.3}, noise=0.01, stand_in=False)
    summary = summarise_measurements(make_run(plan), fold_trials(plan, map(held, make_trials(plan, machine, 10))))
    assert ("cpu-quota" in [item.kind.value for item in summary.cautions]) is told
    begins = "Measured under a CPU quota of 0.3 CPUs, used up in 100% of its periods. fast is 1.3"
    assert summary.groups[0].headline.startswith(begins) is first
    if told:
        assert "limits trials to the time of 0.3 of 2 CPUs" in to_markdown(summary)
    assert summary.analysis.find("fast:cnn@local").verdict == "faster", "a quota is no other program"
