"""A network from another package is built, trained and recorded like a built-in one."""

import os

import pytest

from envmatrix.engines.base import Limits
from envmatrix.engines.process_limits import prepare_confinement
from tests.toy_nets import lay_out_toy

pytestmark = pytest.mark.local
SHORT = {"steps": 3, "warmup_steps": 1, "eval_samples": 100}


@pytest.fixture
def toy(tmp_path):
    lay_out_toy(tmp_path)
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("name", ["toy_nets:small", "toy-small"])
def test_it_is_trained_by_its_reference_or_its_entry_point(bench, toy, name):
    record, _ = bench(env=toy, model=name, **SHORT)
    assert record["result"]["parameters"] == 28 * 28 * 10 + 10
    assert record["result"]["loss"] > 0
    assert record["workload"]["options"]["model"] == "toy_nets:small"


def test_its_builder_is_given_the_options(bench, toy):
    record, _ = bench(env=toy, model="toy_nets:small", bias="false", **SHORT)
    assert record["result"]["parameters"] == 28 * 28 * 10


def test_an_environment_without_the_package_is_skipped_with_the_reason(bench):
    record, _ = bench(model="toy_nets:small", **SHORT)
    assert record["skipped"] == (
        'model: "toy_nets:small" needs the Python module toy_nets, which is not in this environment'
    )


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        (
            "toy_nets:smal",
            2,
            "model: toy_nets:smal cannot be had: module 'toy_nets' has no attribute 'smal' (built in: ",
        ),
        ("toy_nets:nothing", 1, "model: toy_nets:nothing returned NoneType, not a torch.nn.Module"),
    ],
)
def test_a_builder_that_is_none_is_one_clear_line(bench, toy, model, status, words):
    _, done = bench(env=toy, status=status, model=model, **SHORT)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_memory_that_ran_out_in_a_process_beside_it_is_told(bench, toy):
    with prepare_confinement(f"envmatrix-test.{os.getpid()}", Limits(60.0, memory_bytes=2**30)) as confinement:
        if not confinement.place.groups:
            pytest.skip("this user may make no cgroup with a memory limit")
        _, done = bench(env=toy, status=1, model="toy_nets:hungry", group=confinement.place.groups[0], **SHORT)
    assert "RuntimeError: worker is killed by signal: 9 (toy_nets.py:" in done.stderr
    assert done.stderr.endswith(" as memory ran out (1 killed by the kernel)\n")
