"""Inductor's level that calls graphs through C++: it is compiled, and its check is compared with what ran."""

import pytest

from envmatrix.evidence.trial_record import read_evidence
from envmatrix.trials.trial_evidence_verification import verify_evidence
from tests.shipped_levels import environment

SMALL = {"task": "inference", "model": "mlp", "compile": "inductor", "drop_last": "true", "steps": 2, "warmup_steps": 1,
         "eval_samples": 64, "pretrain_steps": 1}  # fmt: skip


@pytest.mark.timeout(600)
def test_a_graph_that_is_called_through_cpp_bears_the_claim_out(bench):
    wanted = environment("inductor", "cpp-wrapper", cpus=1)
    record, _ = bench(**SMALL, env={name: value for name, value in wanted.variables.items() if value is not None})
    if record["skipped"]:
        pytest.skip(record["skipped"])
    seen = read_evidence(record["evidence"])
    assert (seen.inductor.graphs, seen.inductor.cpp_wrapper, seen.inductor.cpp_wrapped) == (1, True, True)
    assert verify_evidence(wanted, seen).wrong == ()
