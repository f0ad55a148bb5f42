"""Memory policies that a process asks the kernel for: effect on it and its children, and the exported command."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.evidence import memory
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.matrix import load
from envmatrix.plan.environment import Environment, Image, resolve_environment
from envmatrix.plan.export_lines import export_lines
from envmatrix.trials.trial_evidence_verification import verify_evidence

ROOT = Path(__file__).parents[2]
#: Prints the state of a process, from one of its children.
SEEN = """
import json
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([status["THP_enabled"].strip(), open("/proc/self/numa_maps").readline().split()[1]]))
"""


def asked(**variables):
    """Return what a child reports about a process that asked for its memory settings."""
    code = f"import os, subprocess, sys; from bench import requested_memory_policy as policy; policy.ask(); \
subprocess.run([sys.executable, '-c', {SEEN!r}], check=True)"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_a_process_that_asks_for_nothing_has_what_the_machine_gives():
    assert json.loads(asked().stdout) == ["1", "default"]


def test_no_huge_pages_and_pages_from_all_nodes_hold_in_what_it_starts():
    done = asked(BENCH_HUGE_PAGES="never", BENCH_INTERLEAVE="all")
    assert not done.returncode, done.stderr
    pages, policy = json.loads(done.stdout)
    assert pages == "0"
    assert policy.startswith("interleave:0")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"BENCH_HUGE_PAGES": "no"}, "bench: error: BENCH_HUGE_PAGES must be never, not 'no'"),
        (
            {"BENCH_INTERLEAVE": "0;1"},
            "bench: error: BENCH_INTERLEAVE must be all, or a list of NUMA nodes",
        ),
        ({"BENCH_INTERLEAVE": "900"}, "bench: error: memory cannot be interleaved over the NUMA nodes [900]: Invalid"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(variables, said):
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}
    argv = [sys.executable, "-m", "bench", "command", "--", "true"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stderr.startswith(said), done.stderr


def test_it_is_exported_as_a_command_that_does_the_same():
    asked_for = {"A": "b", "BENCH_HUGE_PAGES": "never"}
    text = export_lines(Environment("e", "", {}, Image("i"), asked_for, (), ()), (), "sh")
    assert "BENCH_HUGE_PAGES" not in text
    told = json.loads(export_lines(Environment("e", "", {}, Image("i"), asked_for, (), ()), (), "json"))
    assert told["variables"] == {"A": "b"}
    before = text.split("# start your program with: ")[1].removesuffix(" COMMAND")
    assert shlex.split(before) == told["start_with"]
    argv = [*told["start_with"], sys.executable, "-c", SEEN]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[0] == "0"


def test_pages_from_all_nodes_are_exported_as_numactl():
    wanted = Environment("e", "", {}, Image("i"), {"BENCH_INTERLEAVE": "all"}, (), ())
    assert export_lines(wanted, (), "sh").endswith("numactl --interleave=all COMMAND")


@pytest.mark.parametrize(
    ("memory", "holds"),
    [
        ({"policy": "interleave:0-1", "numa_nodes": 2}, True),
        ({"policy": "default", "numa_nodes": 2}, False),
        ({"policy": "interleave:0,2", "numa_nodes": 4}, True),
        ({"policy": "interleave:0", "numa_nodes": 1}, False),
        ({"policy": "interleave:0", "numa_nodes": 2}, False),  # its control group has one node of two
        ({"policy": None, "numa_nodes": 2}, False),
    ],
)
def test_interleaving_that_did_not_happen_or_has_one_node_is_found_out(tmp_path, memory, holds):
    (tmp_path / "matrix.yaml").write_text(
        "version: 2\ninclude: envmatrix:numa\nenvironments: {baseline: {}}\n"
        "workloads: {w: {command: [python, x.py]}}\ndesigns: {default: {workloads: w}}\n"
    )
    wanted = resolve_environment(load(tmp_path / "matrix.yaml"), "numa-interleave", {})
    said = verify_evidence(
        wanted, read_evidence({"memory": memory, "variables": dict(wanted.variables), "preloaded": {}})
    )
    assert (not said.wrong and not said.unproven) == holds, said


@pytest.mark.parametrize(
    ("policy", "nodes"), [("bind:0", "0"), ("bind:1,3", "1,3"), ("default", "0-3"), ("interleave:0-3", "0-3")]
)
def test_memory_comes_from_the_nodes_of_the_policy_otherwise_of_the_control_group(policy, nodes, monkeypatch):
    monkeypatch.setattr(memory, "_policy", lambda _: policy)
    monkeypatch.setattr(memory, "fields", lambda _: {"Mems_allowed_list": "0-3"})
    assert memory.memory_requests("self")["nodes"] == nodes
