"""Command lines of the container engines, compared whole."""

from __future__ import annotations

import itertools
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.block.fork_limit import MOST_PROCESSES
from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines import apptainer_command, docker, local, process_limits, sif_build
from envmatrix.engines.apptainer_command import exec_argv
from envmatrix.engines.base import Job, Limits, Mounts, Prepared, file_safe_name
from envmatrix.engines.catalog import ENGINES
from envmatrix.engines.docker import container_config
from envmatrix.engines.docker_api import NotFound
from envmatrix.engines.docker_container_control import container_exit
from envmatrix.engines.docker_images import CACHE_LABEL, RUN_LABEL, DockerImages, repository_name, without_redundant_tag
from envmatrix.engines.enroot import start_argv
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Image

HOSTILE = {"A": 'x y,$HOME`id`"q"\''}
JOB = Job(
    "run-1", "t1", Prepared("i", "docker", "image:1", "/py", {}), ("/py", "-c", "a b"), HOSTILE, ("/l/a.so", "/l/b.so"),
    Mounts(Path("/w"), {"bench": Path("/b")}), Limits(9.5, (0, 2), (0,), 2**30, 2**28), Path("/log"),
)  # fmt: skip


def test_a_container_is_closed_and_limited() -> None:
    assert container_config(JOB, "65532:65532", Path("/cache")) == {
        "Image": "image:1",
        "Entrypoint": ["/py"],
        "Cmd": ["-c", "a b"],
        "Env": ['A=x y,$HOME`id`"q"\'', "LD_PRELOAD=/l/a.so:/l/b.so"],
        "WorkingDir": "/work",
        "User": "65532:65532",
        "NetworkDisabled": True,
        "Labels": {"org.envmatrix.run": "run-1", "org.envmatrix.cache": "/cache", "org.envmatrix.trial": "t1"},
        "HostConfig": {
            "Binds": ["/w:/work:rw", "/b:/envmatrix/bench:ro"],
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=1073741824"},
            "ShmSize": 2**28,
            "CapDrop": ["ALL"],
            "CapAdd": [],
            "SecurityOpt": ["no-new-privileges", "seccomp=unconfined", "label=disable"],
            "CpusetCpus": "0,2",
            "CpusetMems": "0",
            "PidsLimit": MOST_PROCESSES,
            "LogConfig": {"Type": "json-file", "Config": {}},
            "Memory": 2**30,
            "MemorySwap": 2**30,
        },
    }


@pytest.mark.parametrize(
    ("gpus", "request_body"),
    [
        (("all",), {"Driver": "", "Count": -1, "Capabilities": [["gpu"]], "Options": {}}),
        (("0", "1"), {"Driver": "", "DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]], "Options": {}}),
    ],
)
def test_gpus_are_asked_for_as_docker_run_does(gpus: tuple[str, ...], request_body: dict[str, object]) -> None:
    asked = replace(JOB, limits=replace(JOB.limits, gpus=gpus))
    whole = container_config(asked, "1:1", Path("/cache"))
    assert whole["HostConfig"].pop("DeviceRequests") == [request_body]
    assert whole == container_config(JOB, "1:1", Path("/cache"))


def test_apptainer_gives_gpus_and_lets_the_process_find_the_driver() -> None:
    asked = replace(JOB, limits=replace(JOB.limits, gpus=("2",)), env={"A": "b", "LD_LIBRARY_PATH": "/mine"})
    argv = exec_argv(asked, "apptainer", ())
    plain = exec_argv(replace(JOB, env={"A": "b"}), "apptainer", ())
    added = ["--nv", "LD_LIBRARY_PATH=/.singularity.d/libs:/mine", "CUDA_VISIBLE_DEVICES=2"]
    assert [word for word in argv if word not in plain] == added
    assert [word for word in argv if word not in added] == plain
    every = replace(asked, limits=replace(asked.limits, gpus=("all",)))
    assert not [word for word in exec_argv(every, "apptainer", ()) if word.startswith("CUDA_VISIBLE")]


@pytest.mark.parametrize(
    ("given", "loader", "expected"),
    [({}, (), "{driver}"), ({"LD_LIBRARY_PATH": "/mine"}, (), "/mine:{driver}"), ({}, ("libcuda.so.1",), None)],
)
def test_a_process_finds_a_driver_that_only_the_search_path_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    loader: tuple[str, ...],
    expected: str | None,
) -> None:
    """Without it, a trial would see no GPU where the user's own shell sees one."""
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/elsewhere:{tmp_path}:")
    job = replace(JOB, env=given, prepared=replace(JOB.prepared, loader=frozenset(loader)))
    found = ENGINES.make("local", None).command_line(job).env.get("LD_LIBRARY_PATH")
    assert found == (expected and expected.format(driver=tmp_path))


def test_a_node_must_see_the_sif_and_the_libraries_that_are_mounted_into_it() -> None:
    prepared = Prepared("i", "apptainer", "/c/mine.sif", "/py", {}, mounted={"/opt/libraries/malloc": "/c/lib/malloc"})
    job = replace(JOB, prepared=prepared, limits=Limits(9.5))
    assert ENGINES.make("apptainer", None).command_line(job).needs == (Path("/c/mine.sif"), Path("/c/lib/malloc"))


def test_apptainer_gets_no_folder_in_the_home_of_the_user() -> None:
    expected = {"APPTAINER_CONFIGDIR": "/dev/null/none"}
    prepared = Prepared("i", "apptainer", "/c/mine.sif", "/py", {})
    assert ENGINES.make("apptainer", None).command_line(replace(JOB, prepared=prepared)).env == expected
    assert expected.items() <= apptainer_command.host_variables().items()


def test_apptainer_passes_variables_and_arguments_as_single_words() -> None:
    assert exec_argv(JOB, "apptainer", ["--userns"]) == [
        "apptainer", "--silent", "exec", "--userns", "--containall", "--cleanenv", "--no-home", "--no-privs",
        "--net", "--network", "none", "--pwd", "/work", "--bind", "/w:/work:rw", "--bind", "/b:/envmatrix/bench:ro",
        "image:1", "/usr/bin/env", "-i", "A=x y,$HOME`id`\"q\"'", "LD_PRELOAD=/l/a.so:/l/b.so", "/py", "-c", "a b",
    ]  # fmt: skip


@pytest.mark.parametrize("folder", ["/a:b", "/a:ro,z"])
def test_a_folder_that_would_change_the_mount_is_refused(folder: str) -> None:
    job = replace(JOB, mounts=Mounts(Path(folder), {}))
    with pytest.raises(EngineError, match="cannot mount"):
        container_config(job, "1:1", Path("/cache"))
    with pytest.raises(EngineError, match="cannot mount"):
        exec_argv(job, "apptainer", ())


def test_the_ways_a_container_ends_are_told_apart() -> None:
    assert container_exit(0, 1.0, {}, JOB, timed_out=False).ok
    assert container_exit(3, 1.0, {}, JOB, timed_out=False).code == 3
    assert container_exit(139, 1.0, {}, JOB, timed_out=False).code == -11
    assert container_exit(137, 1.0, {"OOMKilled": False}, JOB, timed_out=False).out_of_memory  # as Podman reports it
    assert not container_exit(137, 1.0, {}, JOB, timed_out=True).out_of_memory


def test_names_become_tags_that_docker_takes_and_stay_distinct() -> None:
    assert repository_name("torch-2.13.0") == "torch-2.13.0"
    names = ["a+b", "a-b", "A-B", "a_b_", "..", "é"]
    assert len({repository_name(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+([._-][a-z0-9]+)*", repository_name(name)) for name in names)


def test_a_tag_beside_a_digest_is_left_out_of_a_pull() -> None:
    assert without_redundant_tag("debian:bookworm-slim@sha256:ab") == "debian@sha256:ab"
    assert without_redundant_tag("host:5000/debian:x@sha256:ab") == "host:5000/debian@sha256:ab"
    assert without_redundant_tag("debian:x") == "debian:x"


def test_long_names_that_differ_at_their_end_stay_distinct_and_short():
    first, second = file_safe_name("x" * 120 + "1"), file_safe_name("x" * 120 + "2")
    assert first != second
    assert max(len(first), len(second)) <= 100
    assert file_safe_name("a.b") != file_safe_name("a+b")
    assert file_safe_name("b0001-p002") == "b0001-p002"


def with_cgroups(folder, kind):
    return lambda controller: None if controller == "pids" else (folder, kind)


@pytest.mark.parametrize("swap", [True, False])
def test_a_memory_limit_is_not_evaded_by_swapping(tmp_path, monkeypatch, swap):
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", with_cgroups(tmp_path, "cgroup v2"))
    monkeypatch.setattr(process_limits, "remove_cgroup_once_empty", lambda group: True)
    (tmp_path / "g").mkdir()
    if swap:
        (tmp_path / "g" / "memory.swap.max").write_text("max")
    with process_limits.prepare_confinement("g", Limits(9.0, memory_bytes=2**30)) as found:
        assert found.memory_group == tmp_path / "g"
    found = {file.name: file.read_text() for file in (tmp_path / "g").iterdir()}
    assert found == {"memory.max": str(2**30), **({"memory.swap.max": "0"} if swap else {})}


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("cgroup v1", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}),
        ("cgroup v2", {"cpu.max": "150000 100000"}),
    ],
)
def test_a_quota_is_written_as_the_kernel_reads_it_and_docker_is_told_the_same(tmp_path, monkeypatch, kind, written):
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", with_cgroups(tmp_path, kind))
    monkeypatch.setattr(process_limits, "remove_cgroup_once_empty", lambda group: True)
    with process_limits.prepare_confinement("g", Limits(9.0, cpu_quota=1.5)) as found:
        assert found.place.groups == (tmp_path / "g",)
    assert {file.name: file.read_text() for file in (tmp_path / "g").iterdir()} == written
    host = container_config(replace(JOB, limits=Limits(9.0, cpu_quota=1.5)), "1:1", Path("/cache"))["HostConfig"]
    assert (host["CpuPeriod"], host["CpuQuota"]) == (100_000, 150_000)


def test_one_group_of_version_2_holds_both_limits_and_is_entered_once(tmp_path, monkeypatch):
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", with_cgroups(tmp_path, "cgroup v2"))
    monkeypatch.setattr(process_limits, "remove_cgroup_once_empty", lambda group: True)
    with process_limits.prepare_confinement("g", Limits(9.0, cpu_quota=2.0, memory_bytes=2**30)) as found:
        assert found.place.groups == (tmp_path / "g",)
    assert {file.name for file in (tmp_path / "g").iterdir()} == {"cpu.max", "memory.max"}


def test_runs_of_one_name_in_two_processes_remove_no_cgroup_of_each_other(monkeypatch):
    own = process_limits.cgroup_name(JOB)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert process_limits.cgroup_name(JOB) != own


def test_a_sweep_leaves_the_containers_of_a_run_of_that_name_with_another_cache(monkeypatch, tmp_path):
    """Users of one daemon who start a design in the same second have runs of the same name."""
    labels = container_config(JOB, "1:1", tmp_path / "theirs")["Labels"]
    removed = []

    def find(filters, **_):
        wanted = [filters["label"]] if isinstance(filters["label"], str) else filters["label"]
        found = {f"{name}={value}" for name, value in labels.items()} >= set(wanted)
        return [SimpleNamespace(id="c1")] if found else []

    client = SimpleNamespace(containers=SimpleNamespace(list=find), close=lambda: None)
    monkeypatch.setattr(docker, "connect", lambda _: client)
    monkeypatch.setattr(docker, "remove", lambda _, container: removed.append(container))
    for user, left in (("ours", 0), ("theirs", 1)):
        engine = docker.DockerEngine(BuildPaths(Cache(tmp_path / user), tmp_path, tmp_path))
        assert engine.sweep(JOB.run) == len(removed) == left


def test_a_container_that_only_shows_its_packages_can_be_found_by_its_label(tmp_path):
    made = []

    def create(reference, **more):
        made.append(more["labels"])
        raise NotFound("stop here")

    client = SimpleNamespace(containers=SimpleNamespace(create=create))
    with pytest.raises(NotFound):
        DockerImages(client, BuildPaths(Cache(tmp_path), tmp_path, tmp_path))._dpkg_status("base")
    assert made[0].items() >= {RUN_LABEL: "build", CACHE_LABEL: str(tmp_path)}.items()


def test_an_image_that_was_built_here_and_is_also_a_ready_made_one_has_two_sifs(tmp_path, monkeypatch) -> None:
    """Guards against a run that ends with "files_digest: No such file" after the same image ran as a ready-made one."""
    built = []
    monkeypatch.setattr(sif_build, "docker_or_podman_engine", lambda _: None)
    monkeypatch.setattr(sif_build, "build_sif", lambda file, *_: built.append(file.write_text("a SIF")))
    cache = Cache(tmp_path / "cache")
    ready, _ = sif_build.ensure_sif(
        BuildPaths(cache, tmp_path, tmp_path), Image("mine", ready="team/train:1"), lambda _: None
    )
    assert ready != sif_build.sif_path(cache, "team/train:1")
    assert ready.parent.parent == sif_build.sif_path(cache, "team/train:1").parent.parent
    assert len(built) == 1


def test_a_program_whose_folder_lies_in_a_mounted_one_starts_at_its_own_path_in_its_work_folder() -> None:
    """So that it finds ``../data``, and changes nothing in its own folder."""
    mounts = Mounts(Path("/w"), {"files": Path("/p/mine")}, (Path("/p/mine"), Path("/data"), Path("/p")))
    job = replace(JOB, mounts=mounts)
    binds = ["/w:/work:rw", "/p/mine:/envmatrix/files:ro", "/data:/data:ro", "/p:/p:ro", "/w:/p/mine:rw"]
    config = container_config(job, "1:1", Path("/cache"))
    assert (config["HostConfig"]["Binds"], config["WorkingDir"]) == (binds, "/p/mine")  # type: ignore[index]
    argv = exec_argv(job, "apptainer", ())
    assert [after for word, after in itertools.pairwise(argv) if word == "--bind"] == binds
    assert argv[argv.index("--pwd") + 1] == "/p/mine"
    words = start_argv(job, "name")
    assert [after.partition(":none")[0] for word, after in itertools.pairwise(words) if word == "--mount"][:-1] == [
        bind.rpartition(":")[0] for bind in binds
    ]
    assert words[words.index("name") + 4] == "/p/mine"


def test_a_program_elsewhere_starts_in_its_work_folder() -> None:
    mounts = Mounts(Path("/w"), {"files": Path("/p/mine")}, (Path("/data"),))
    assert container_config(replace(JOB, mounts=mounts), "1:1", Path("/cache"))["WorkingDir"] == "/work"


def test_a_torch_or_json_of_the_current_folder_is_not_that_of_an_interpreter(tmp_path, monkeypatch) -> None:
    """Guards against "cannot import torch" in a checkout of PyTorch."""
    packages, here = tmp_path / "packages", tmp_path / "pytorch"
    for folder in (packages, here):
        (folder / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text("__version__ = '2.9.1'\n")
    for name in ("json.py", "torch/__init__.py"):
        (here / name).write_text("raise ImportError('not built')\n")
    monkeypatch.chdir(here)
    facts, reason = local._import_torch(sys.executable, Image("mine"), {"PYTHONPATH": str(packages)})
    assert (facts.get("torch"), reason) == ("2.9.1", "")
    assert not (here / "__pycache__").exists()
