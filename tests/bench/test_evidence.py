"""Evidence of what is active, collected in real processes under real preloads."""

import os
import re
import shutil
from pathlib import Path

import pytest

from bench.evidence.reading import selected_choice
from envmatrix.evidence.trial_record import read_record
from tests.unknown_keys import unknown_keys

pytestmark = pytest.mark.local
PLACES = [
    *os.environ.get("BENCH_LIBRARIES", "").split(":"),
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/llvm-*/lib",
]


def library(*names):
    """Find a shared library in BENCH_LIBRARIES or the system's folders, or skip the test."""
    for place in filter(None, PLACES):
        for name in names:
            for found in sorted(Path("/").glob(f"{place}/{name}".lstrip("/"))):
                return str(found)
    pytest.skip(f"there is no {names[0]}: install it, or name its folder in BENCH_LIBRARIES")


def evidence(bench, **env):
    record, _ = bench("evidence", env=env)
    return record["evidence"]


def test_everything_that_is_written_is_in_the_types_of_the_record(bench):
    record, _ = bench(steps=2, warmup_steps=1, eval_samples=10, profile_steps=1)
    assert list(unknown_keys(read_record(record))) == []
    assert read_record(record).model_dump(mode="json", by_alias=True, exclude_unset=True) == record
    calls = record["profile"]["memory_calls"]
    assert (calls is None) == (shutil.which("strace") is None)
    assert calls is None or calls["mmap"] + calls["brk"] > 0, "glibc gets memory from the kernel in every step"
    assert record["profile"]["gpu"] is None
    assert record["step_thread"]["prices"]["memory_call_ns"] > 0


def test_without_preloads_the_plain_libraries_serve(bench):
    seen = evidence(bench)
    assert seen["openmp"]["library"] == "libgomp"
    assert seen["openmp"]["blocktime"] is None
    assert seen["malloc"]["library"] == "libc"
    assert seen["blas"]["path"]
    assert seen["torch"]["threads"] == len(seen["cpu"]["affinity_before"])
    assert seen["cpu"]["affinity_before"] == seen["cpu"]["affinity_after"] == sorted(os.sched_getaffinity(0))
    assert seen["system"]["kernel"] == os.uname().release


def test_intel_openmp_is_seen_with_the_settings_it_took(bench):
    path = library("libiomp5.so")
    seen = evidence(
        bench,
        LD_PRELOAD=path,
        KMP_BLOCKTIME="1",
        KMP_AFFINITY="granularity=fine,compact,1,0",
        OMP_NUM_THREADS="2",
    )["openmp"]
    assert seen["library"] == "libiomp5"
    assert seen["blocktime"] == 1
    assert "compact" in seen["affinity"]
    assert seen["version"]
    assert seen["threads"] == 2


def test_intel_variables_under_gnu_openmp_are_shown_to_have_no_effect(bench):
    seen = evidence(bench, KMP_BLOCKTIME="1", KMP_AFFINITY="compact")["openmp"]
    assert seen["blocktime"] is None
    assert seen["affinity"] is None


def test_llvm_openmp_is_told_from_intel_openmp(bench):
    assert evidence(bench, LD_PRELOAD=library("libomp.so.5"))["openmp"]["library"] == "libomp"


def test_gnu_openmp_binding_and_spinning_are_read_back(bench):
    seen = evidence(bench, OMP_PROC_BIND="true", GOMP_SPINCOUNT="17", OMP_NUM_THREADS="2")
    assert seen["openmp"]["proc_bind"] == "true"
    assert seen["openmp"]["spin_count"] == "17"
    assert len(seen["cpu"]["affinity_end"]) == 1


def test_jemalloc_is_seen_with_the_options_it_took(bench):
    path = library("libjemalloc.so.2")
    seen = evidence(bench, LD_PRELOAD=path, MALLOC_CONF="dirty_decay_ms:-1,metadata_thp:auto")["malloc"]
    assert seen["library"] == "libjemalloc"
    assert seen["version"].startswith("5.")
    assert seen["options"]["dirty_decay_ms"] == -1
    assert seen["options"]["metadata_thp"] == "auto"
    assert seen["options"]["narenas"] >= 1


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"), "libtcmalloc"),
        (("libmimalloc.so.2*",), "libmimalloc"),
    ],
)
def test_other_allocators_are_named_with_their_version(bench, names, expected):
    seen = evidence(bench, LD_PRELOAD=library(*names))["malloc"]
    assert seen["library"] == expected
    assert seen["version"][0].isdigit()


def test_glibc_tunables_are_read_back_as_glibc_understood_them(bench):
    set_well = evidence(bench, GLIBC_TUNABLES="glibc.malloc.mmap_threshold=1073741824")["malloc"]["options"]
    set_badly = evidence(bench, GLIBC_TUNABLES="glibc.malloc.mmap_treshold=1073741824")["malloc"]["options"]
    assert set_well["mmap_threshold"] == 1 << 30
    assert "mmap_threshold" not in set_badly


def test_a_missing_preload_is_not_believed(bench):
    assert evidence(bench, LD_PRELOAD="/nowhere/libjemalloc.so.2")["malloc"]["library"] == "libc"


def test_a_link_named_libgomp_to_intel_openmp_is_seen_through(bench, tmp_path):
    (tmp_path / "libgomp.so.1").symlink_to(Path(library("libiomp5.so")))
    seen = evidence(bench, LD_PRELOAD=str(tmp_path / "libgomp.so.1"))
    assert seen["openmp"]["library"] == "libiomp5"


def test_secrets_among_the_variables_are_hidden(bench):
    seen = evidence(bench, MY_API_KEY="abc", OMP_NUM_THREADS="1")
    assert seen["variables"]["MY_API_KEY"] == "(hidden)"
    private = evidence(bench, DATABASE="postgres://me:secret@db/x", https_proxy="http://me:secret@proxy:3128",
                       GITHUB_PAT="ghp_1", PIP_INDEX_URL="https://token@index", NCCL_X="http://me:secret@h", MINE="7",
                       THEIRS="8", BENCH_VARIABLES="MINE")  # fmt: skip
    assert not re.search("secret|ghp_1|token@|'8'", str(private)), private["variables"]
    assert (private["variables"]["THEIRS"], private["variables"]["MINE"]) == ("(set)", "7")
    assert private["collectives"]["variables"]["NCCL_X"] == "http://(hidden)@h"
    assert seen["variables"]["OMP_NUM_THREADS"] == "1"
    assert seen["torch"]["threads"] == 1


def test_huge_pages_are_seen_though_nothing_but_evidence_is_asked_for(bench):
    if (selected_choice("/sys/kernel/mm/transparent_hugepage/enabled") or "never") == "never":
        pytest.skip("this machine's kernel gives no transparent huge pages")
    assert evidence(bench, THP_MEM_ALLOC_ENABLE="1")["memory"]["huge_pages_bytes"] > 0
