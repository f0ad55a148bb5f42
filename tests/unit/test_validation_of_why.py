"""The checks of explanations themselves: known costs are what they say, and the cost of the counters is computed."""

import os
import subprocess
import sys

import numpy as np
import pytest

from envmatrix.api.places import load_matrix
from validation import costly_program, why_injected, why_overhead


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


def test_the_process_without_counters_has_none():
    """Both ways run the same program; only the counters of the thread differ."""
    assert "attempt_read = lambda: None" in why_overhead.WAYS["without"]
    seen = [
        subprocess.run(
            [sys.executable, "-c", f"{lines}; print(step_thread.attempt_read() is None)"],
            capture_output=True, text=True, check=True,
        ).stdout
        for lines in ("from bench import step_thread", why_overhead.WAYS["without"].partition("\n")[0])
    ]  # fmt: skip
    assert seen == ["False\n", "True\n"]
