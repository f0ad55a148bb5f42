"""A CPU quota of an environment: how levels come together, and whether a trial had it."""

import pytest

from envmatrix.matrix import load
from envmatrix.plan.environment import resolve
from envmatrix.record.model import read_evidence
from envmatrix.record.settled import settled
from envmatrix.trials.proof import prove
from envmatrix.trials.trial import placed_limits

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
    both, baseline = resolve(matrix, "both", {}), resolve(matrix, "baseline", {})
    assert (both.cpu_quota, both.turns, placed_limits(both, 9.0).cpu_quota) == (0.5, False, 0.5)
    assert (baseline.cpu_quota, baseline.turns) == (None, True)


@pytest.mark.parametrize(("limit", "holds"), [(1.0, True), (None, False), (2.0, False)])
def test_a_quota_that_did_not_hold_is_found_out(matrix, limit, holds):
    seen = read_evidence({"sandbox": {"cgroup": {"cpu_limit": limit}}, "variables": {}, "preloaded": {}})
    said = prove(resolve(matrix, "cpu-quota-1", {}), seen)
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
