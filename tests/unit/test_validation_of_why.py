"""The checks of explanations themselves: known costs are what they say, and the cost of the counters is computed."""

import os
import subprocess
import sys

import numpy as np
import pytest

from bench import step_thread_account
from envmatrix.api.matrix_and_run_lookup import load_matrix
from validation import costly_program, counted_turns, why_injected, why_overhead


def paid(cost):
    done = subprocess.run(
        [sys.executable, why_injected.PROGRAM], env={**os.environ, "ENVMATRIX_COST": cost},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith("paid: ")
    return float(done.stdout.split()[1])


def test_a_lock_that_another_process_holds_costs_at_least_that_long():
    assert paid("lock:0.004:sleep") >= 0.004 * costly_program.STEPS
    assert paid("none:0:sleep") < 0.004 * costly_program.STEPS


def test_more_processes_than_cpus_take_cpu_time_away():
    assert paid(f"others:{2 * len(os.sched_getaffinity(0))}:sleep") > 0.1


@pytest.mark.parametrize("waits", why_injected.WAITS)
def test_every_cost_is_an_environment_that_matrix_yaml_allows(tmp_path, waits):
    (tmp_path / "matrix.yaml").write_text(why_injected.matrix(list(why_injected.KINDS), waits, 6))
    matrix = load_matrix(tmp_path / "matrix.yaml")
    assert len(matrix.designs["default"].environments) == 2 * len(why_injected.KINDS)
    (tmp_path / "isa.yaml").write_text(why_injected.OLDER_KERNELS.format(python=sys.executable, blocks=6))
    older = load_matrix(tmp_path / "isa.yaml").designs["default"]
    assert (older.environments, older.min_blocks) == (("isa-0", "isa-1"), 6)


def test_the_cost_of_the_counters_is_a_ratio_with_an_interval():
    chance = np.random.default_rng(1)
    base = chance.normal(5.0, 0.5, 200)
    blocks = [
        {"order": [], "without": without, "with": 1.01 * without * np.exp(chance.normal(0, 0.005))} for without in base
    ]
    found = why_overhead.ratio(blocks)
    assert found["low"] < 1.01 < found["high"]
    assert found["high"] - found["low"] < 0.003
    assert why_overhead.ratio(blocks[:1])["low"] is None


def test_each_turn_has_its_counters_or_not_as_chosen(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["counted_turns", "3", "01"])
    monkeypatch.setattr(step_thread_account, "attempt_read", step_thread_account.attempt_read)
    turns = counted_turns.Turns("none")
    seen = []
    for left in (6, 3):
        assert turns.turn(left).counted == 3
        seen.append(step_thread_account.attempt_read() is not None)
    assert seen == [False, True]
    assert turns.end() is None


def test_pairs_of_turns_have_one_of_each():
    assert why_overhead.pairs("0110", [1.0, 2.0, 3.0, 4.0]) == [
        {"without": 1.0, "with": 2.0}, {"with": 3.0, "without": 4.0},
    ]  # fmt: skip
