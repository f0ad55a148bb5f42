"""Machines with Arm processors, made up: their names, their cores, the levels they have and the locks they use."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from bench import processor
from bench.evidence import onednn
from envmatrix.build.cache import Cache
from envmatrix.build.debian.minimal_base import bootstrap_argv
from envmatrix.build.debian.packages import Apt
from envmatrix.build.lockfile import read_lock
from envmatrix.build.package_locks import Locks, image_request_text
from envmatrix.build.python.interpreters import Python
from envmatrix.build.python.pip import target_options
from envmatrix.engines.base import Prepared, check_architecture
from envmatrix.errors import SkipEnvironmentError
from envmatrix.launchers import ssh
from envmatrix.plan.environment import all_images, all_libraries, resolve_environment
from envmatrix.system import resource_paths
from envmatrix.system.host import this_host
from envmatrix.trials.images import ImageBuilder, prepare_images
from tests import shipped_levels

#: One processor of /proc/cpuinfo, as arm64 kernels write it (arch/arm64/kernel/cpuinfo.c): no `model name`.
CPUINFO = """processor\t: {number}
BogoMIPS\t: {mips}
Features\t: {features}
CPU implementer\t: {maker}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 1

"""
GRAVITON2 = ("243.75", "fp asimd evtstrm aes sha2 crc32 atomics fphp asimdhp", "0x41", "0xd0c")
GRAVITON3 = ("2100.00", "fp asimd evtstrm aes sha2 crc32 atomics sve bf16 i8mm dgh rng", "0x41", "0xd40")
GRACE = ("2000.00", "fp asimd evtstrm aes sha2 crc32 atomics sve sve2 bf16 i8mm bti", "0x41", "0xd4f")
APPLE_M1 = ("48.00", "fp asimd evtstrm aes sha2 crc32 atomics fphp asimdhp", "0x61", "0x023")
UNKNOWN = ("50.00", "fp asimd", "0x99", "0xabc")
HERE, ELSEWHERE = "x86_64", "aarch64"


def written(kind: tuple[str, str, str, str], cpus: int) -> str:
    """Return /proc/cpuinfo of a machine with so many processors of one kind."""
    mips, features, maker, part = kind
    texts = (
        CPUINFO.format(number=number, mips=mips, features=features, maker=maker, part=part) for number in range(cpus)
    )
    return "".join(texts)


@pytest.fixture
def arm(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (GRAVITON2, "Arm Neoverse-N1"),
        (GRAVITON3, "Arm Neoverse-V1"),
        (GRACE, "Arm Neoverse-V2"),
        (APPLE_M1, "Apple M1"),
        (UNKNOWN, "maker 0x99 part 0xabc"),
    ],
)
def test_an_arm_processor_has_the_name_of_its_maker_and_part_and_every_cpu_is_a_core(
    tmp_path, monkeypatch, arm, kind, name
):
    cpus = 4
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(written(kind, cpus))
    for cpu in range(cpus):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cpus)))
    host = this_host(tmp_path)
    assert (host.machine, host.cpu_model) == ("aarch64", name)
    assert host.physical_cpus == host.cpus == (0, 1, 2, 3)
    assert host.hypervisor is None, "an Arm kernel does not say it"
    assert host.facts()["physical_cores"] == host.facts()["logical_cpus"] == "4"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model name\t: AMD EPYC 7R13\nflags\t: fpu hypervisor\n", "AMD EPYC 7R13"),
        ("processor\t: 0\nHardware\t: BCM2835\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("", None),
    ],
)
def test_a_processor_that_its_kernel_names_keeps_that_name(text, name):
    assert processor.model(text) == name


#: Printed by oneDNN 3.7.1 in PyTorch 2.10.0 for arm64, of a convolution that ran twice (shortened).
ONEDNN_LINES = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e693366ef8db40acc569cc7d8edf644556d)
onednn_verbose,v1,info,cpu,isa:AArch64 SVE (256 bits)
onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,gemm:acl,forward_training,src:f32:a:blocked:acdb::f0
onednn_verbose,v1,primitive,create:cache_miss,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0
onednn_verbose,v1,primitive,exec,cpu,convolution,gemm:acl,forward_training,src:f32:a:blocked:acdb::f0,attr-fpmath:bf16
onednn_verbose,v1,primitive,create:cache_{second},cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0
onednn_verbose,v1,primitive,exec,cpu,convolution,gemm:acl,forward_training,src:f32:a:blocked:acdb::f0,attr-fpmath:bf16
"""


@pytest.mark.parametrize(("second", "is_cached"), [("hit", True), ("miss", False)])
def test_onednns_cache_is_seen_on_arm_too_where_pytorch_keeps_the_convolution_itself(second, is_cached):
    seen = onednn.described(ONEDNN_LINES.format(second=second))
    assert seen["primitive_cache"] is is_cached
    assert (seen["isa"], seen["implementation"], seen["fpmath"]) == ("AArch64 SVE (256 bits)", "gemm:acl", "bf16")


def skip_reason(name: str) -> str:
    environment = resolve_environment(shipped_levels.matrix(), name, {})
    try:
        check_architecture(environment)
    except SkipEnvironmentError as error:
        return error.message
    return ""


def test_recipes_with_intels_libraries_are_skipped_on_arm_and_gravitons_is_not(arm):
    everything = shipped_levels.matrix().environments
    skipped = {name for name in everything if skip_reason(name)}
    assert {"intel-omp", "book", "run-cpu", "pytorch-ci", "vllm-cpu", "onednn-avx2", "aten-avx2", "xla"} <= skipped
    assert not skipped & {
        "baseline",
        "graviton",
        "graviton-bf16",
        "jemalloc",
        "tbbmalloc",
        "llvm-omp",
        "onednn-asimd",
        "aten-default",
    }
    assert skip_reason("intel-omp") == (
        "openmp=intel does not exist for aarch64, this machine's architecture, only for x86_64"
    )


def test_levels_for_arm_are_skipped_on_x86(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert "isa=onednn-asimd does not exist for x86_64" in skip_reason("onednn-asimd")
    assert not skip_reason("intel-omp")


class Counting:
    """An engine that counts what it prepares."""

    name = "local"
    shares_files = True

    def __init__(self) -> None:
        self.prepared: list[str] = []

    def prepare(self, image, libraries, progress):
        self.prepared.append(image.name)
        return Prepared(image.name, "local", "/v", "/v/python", {})


def test_nothing_is_built_for_a_level_that_does_not_exist_here_and_its_image_serves_the_others(arm):
    environments = {
        name: resolve_environment(shipped_levels.matrix(), name, {}) for name in ("xla", "intel-omp", "baseline")
    }
    engine = Counting()
    ready, missing = prepare_images(environments, {None: ImageBuilder({"local": engine}, ())}, print)
    assert engine.prepared == [environments["baseline"].image.name]
    assert list(ready) == [(environments["baseline"].image.name, "local")]
    assert {name for name, _ in missing} == {"xla", "intel-omp"}


@pytest.mark.parametrize(
    ("here", "held"), [(True, {"malloc-jemalloc"}), (False, {"malloc-jemalloc", "malloc-tcmalloc"})]
)
def test_this_machine_prepares_only_libraries_that_are_preloaded_and_an_image_holds_all(here, held):
    matrix = shipped_levels.matrix()
    libraries = tuple(one for one in all_libraries(matrix) if one.key in ("malloc-jemalloc", "malloc-tcmalloc"))
    prepared = []
    engine = Counting()
    engine.shares_files = here
    engine.prepare = lambda image, held, _progress: (
        prepared.append({one.key for one in held})
        or Prepared(image.name, "local", "/v", "/v/python", {key.key: "/l" for key in held})
    )
    environments = {name: resolve_environment(matrix, name, {}) for name in ("baseline", "jemalloc")}
    prepare_images(environments, {None: ImageBuilder({"local": engine}, libraries)}, print)
    assert prepared == [held], "once for all environments of an image"


def test_a_library_that_does_not_exist_for_an_architecture_is_in_none_of_its_images():
    matrix = shipped_levels.matrix()
    image = resolve_environment(matrix, "baseline", {}).image
    keys = {here: {one.key for one in all_libraries(matrix) if one.is_for(image, here)} for here in (HERE, ELSEWHERE)}
    assert keys[HERE] - keys[ELSEWHERE] == {"openmp-intel", "openmp-intel-2023.1"}
    assert keys[ELSEWHERE] < keys[HERE]


def test_the_committed_locks_have_the_same_versions_for_both_architectures():
    """Image levels that are built from source are locked on their own machine; nothing else is missing."""
    matrix, folder = shipped_levels.matrix(), resource_paths.bundled_package_locks()
    for image in all_images(matrix).values():
        locks = [read_lock(folder / f"{image.name}.cp311-linux_{one}.txt") for one in (HERE, ELSEWHERE)]
        if locks[0] is None or image.builds or image.architectures:
            continue
        assert locks[1], f"{image.name} has no lock for {ELSEWHERE}"
        here, there = (lock.find("image", image.name, image_request_text(image)) for lock in locks)
        versions = [{pin.name: pin.version for pin in section.packages} for section in (here, there)]
        if "-cu" not in image.name:  # NVIDIA's packages were locked on two days
            assert versions[0] == versions[1], image.name
        assert {pin.sha256 for pin in here.packages} != {pin.sha256 for pin in there.packages}
    files = {kind: folder / f"libraries.{kind}_{ELSEWHERE}.txt" for kind in ("linux",)}
    files["debian"] = folder / f"libraries.debian-bookworm-{ELSEWHERE}.txt"
    locked = {kind: {section.name for section in read_lock(file).sections} for kind, file in files.items()}
    wanted = [one for one in all_libraries(matrix) if not one.architectures]
    assert locked["linux"] == {one.key for one in wanted if one.requirements}
    assert locked["debian"] == {one.key for one in wanted if one.apt}
    debs = [pin.file for section in read_lock(files["debian"]).sections for pin in section.packages]
    assert all(name.endswith("_arm64.deb") for name in debs)


def test_a_machine_uses_the_locks_of_its_own_architecture(tmp_path, arm):
    locks, python = Locks(tmp_path, Cache(tmp_path)), Python("/usr/bin/python3", "3.11.2", "cp311-linux_aarch64")
    image = resolve_environment(shipped_levels.matrix(), "baseline", {}).image
    assert locks.image_file(image, python).name == "torch-2.13.0.cp311-linux_aarch64.txt"
    assert locks.library_wheels_file(python).name == "libraries.linux_aarch64.txt"
    assert "--architectures=arm64" in bootstrap_argv("bookworm", Path("t"), "m")


def test_a_lock_is_refreshed_for_every_architecture_that_the_folder_has(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert Locks(tmp_path, Cache(tmp_path)).architectures() == ["x86_64"]
    (tmp_path / "libraries.debian-bookworm-aarch64.txt").touch()
    assert Locks(tmp_path, Cache(tmp_path)).architectures() == ["x86_64", "aarch64"]
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert Locks(tmp_path, Cache(tmp_path)).architectures() == ["riscv64", "aarch64"]


def test_wheels_and_debian_packages_of_another_architecture_are_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    python = Python("/usr/bin/python3", "3.11.2", "cp311-linux_x86_64")
    assert python.for_architecture("x86_64") is python
    there = python.for_architecture("aarch64")
    assert (there.tag, there.target, there.architecture) == ("cp311-linux_aarch64", "3.11", "aarch64")
    options = target_options(there.target, there.architecture)
    assert "manylinux_2_28_aarch64" in options
    assert not any("x86" in option for option in options)
    apt = Apt(Cache(tmp_path), "debian-bookworm-aarch64", architecture="aarch64").options()
    assert "APT::Architecture=arm64" in apt
    assert "APT::Architectures=arm64" in apt


@pytest.mark.parametrize(
    "file", sorted((resource_paths.bundled_package_locks().parent).glob("*.*")), ids=lambda file: file.name
)
def test_a_committed_definition_names_no_architecture(file):
    text = file.read_text()
    assert not [word for word in ("x86_64", "amd64", "x86-64", "aarch64", "arm64") if word in text]


def test_a_host_without_envmatrix_reports_its_facts_over_ssh(monkeypatch):
    monkeypatch.setattr(ssh, "ssh_argv", lambda _, script: ["/bin/sh", "-c", script])
    assert ssh._inspect_host("any") == this_host()
