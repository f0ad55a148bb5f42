"""Allocator settings that were refused are named: real processes, with glibc's malloc and jemalloc."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.parallel import observed
from envmatrix.evidence import checks
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.matrix import load
from envmatrix.plan.environment import Environment, Image
from envmatrix.system.resource_paths import bundled_matrix_file
from envmatrix.trials.trial_evidence_verification import verify_evidence

ROOT = Path(__file__).parents[2]
SHOW = "import json; from bench.evidence import malloc; print(json.dumps(malloc.collect()))"


def malloc_with(**variables):
    base = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=ROOT, env={**base, **variables},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({}, []),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=536870912:glibc.malloc.arena_max=1"}, []),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_treshold=1"}, ["GLIBC_TUNABLES: glibc.malloc.trim_treshold=1"]),
        ({"GLIBC_TUNABLES": "glibc.malloc.perturb=9999"}, ["GLIBC_TUNABLES: glibc.malloc.perturb=9999"]),
        ({"MALLOC_ARENA_MAX": "1"}, []),
        ({"MALLOC_ARENAS_MAX": "1"}, ["MALLOC_ARENAS_MAX: 1"]),
        ({"MALLOC_CONF": "narenas:1"}, ["MALLOC_CONF: narenas:1"]),
        ({"TCMALLOC_RELEASE_RATE": "1"}, ["TCMALLOC_RELEASE_RATE: 1"]),
    ],
)
def test_what_the_c_library_does_not_take_is_named(variables, refused):
    found = malloc_with(**variables)
    if found["library"] != "libc":
        pytest.skip("this Python brings its own malloc")
    assert found["refused"] == refused


def library(name):
    folders = os.environ.get("BENCH_LIBRARIES", "").split(":")
    found = [path for folder in folders for path in Path(folder).glob(name)] if any(folders) else []
    if not found:
        pytest.skip(f"no {name}: set BENCH_LIBRARIES")
    return str(found[0])


@pytest.mark.parametrize(
    ("name", "variables", "refused"),
    [
        ("libjemalloc.so.2", {"MALLOC_CONF": "narenas:3,dirty_decay_ms:-1,background_thread:true"}, []),
        ("libjemalloc.so.2", {"MALLOC_CONF": "oversize_threshold:1"}, []),
        ("libjemalloc.so.2", {"MALLOC_CONF": "oversize_threshold:65536,narenas:3"}, []),
        ("libjemalloc.so.2", {"MALLOC_CONF": "narenas:3,dirty_decay:-1"}, ["MALLOC_CONF: dirty_decay:-1"]),
        ("libjemalloc.so.2", {"MALLOC_CONF": "background_thread:yes"}, ["MALLOC_CONF: background_thread:yes"]),
        ("libjemalloc.so.2", {"MALLOC_ARENA_MAX": "1"}, ["MALLOC_ARENA_MAX: 1"]),
        ("libmimalloc.so.2", {"MIMALLOC_EAGER_COMMIT": "0"}, []),
        ("libmimalloc.so.2", {"MIMALLOC_EAGER_COMIT": "0"}, ["MIMALLOC_EAGER_COMIT: 0"]),
        ("libtcmalloc_minimal.so.4", {"TCMALLOC_RELEASE_RATE": "1"}, []),
        ("libtcmalloc_minimal.so.4", {"TCMALLOC_RELEASE": "1"}, ["TCMALLOC_RELEASE: 1"]),
    ],
)
def test_what_an_allocator_does_not_take_is_named(name, variables, refused):
    assert malloc_with(LD_PRELOAD=library(name), **variables)["refused"] == refused


def test_every_setting_of_jemalloc_that_is_shipped_is_taken():
    levels = load(bundled_matrix_file()).factors["malloc"].levels.values()
    settings = [level.env["MALLOC_CONF"] for level in levels if "MALLOC_CONF" in level.env]
    assert len(settings) > 1
    preload = library("libjemalloc.so.2")
    assert [malloc_with(LD_PRELOAD=preload, MALLOC_CONF=text)["refused"] for text in settings] == [[]] * len(settings)


@pytest.mark.parametrize(("own", "wrong"), [({"MALLOC_CONF": "a:1"}, 1), ({}, 0)])
def test_a_setting_of_the_environment_that_is_not_taken_makes_the_trial_invalid(own, wrong):
    environment = Environment("mine", "", {}, Image("i"), own, (), checks.parse_claims({}))
    seen = {"malloc": {"library": "libc", "refused": ["MALLOC_CONF: a:1"]}, "variables": {"MALLOC_CONF": "a:1"}}
    assert len(verify_evidence(environment, read_evidence(seen)).wrong) == wrong


def test_nccl_says_what_it_took_in_its_own_words():
    said = (
        "host:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
        "host:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
        "host:1:1 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to /tmp/bench-probe.7/nccl-1.log\n"
        "host:1:1 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    )
    assert observed.parse_nccl_log(said) == {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    ("said", "channels"),
    [  # of NCCL 2.30, 2.18 and 2.10
        (
            "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
            {"channels": "24", "nvls_channels": "16"},
        ),
        ("2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
         {"channels": "2", "nvls_channels": "0"}),
        ("8 coll channels, 8 p2p channels, 4 p2p channels per peer", {"channels": "8"}),
    ],
)  # fmt: skip
def test_how_many_channels_nccl_made_is_read_from_the_last_communicator(said, channels):
    first = "host:1:1 [0] NCCL INFO 1 coll channels, 1 collnet channels, 0 nvls channels, 1 p2p channels\n"
    assert observed.parse_nccl_log(f"{first}host:1:1 [0] NCCL INFO {said}\n") == channels


@pytest.mark.parametrize(
    ("before", "after", "world", "lazy"), [(1, 2, 2, False), (1, 1, 2, True), (1, 1, 1, None), (None, 1, 2, None)]
)
def test_gloo_is_lazy_where_joining_connected_to_nobody(before, after, world, lazy):
    assert observed.is_lazy(before, after, world) is lazy
