"""doctor's messages about installed software: from the machine's tools if present, otherwise from sample output."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.api import machine_checks
from envmatrix.engines import apptainer_command, process_limits
from envmatrix.launchers import doctor_software_checks
from envmatrix.launchers.slurm import client
from envmatrix.system.process import Place

#: Output of `cat /proc/driver/nvidia/version`, with NVIDIA's own and with the open kernel module.
OWN = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"
#: Output of `scontrol show config`.
CONFIG = "ProctrackType           = proctrack/cgroup\nTaskPlugin              = task/affinity,task/cgroup\n"


def machine(folder, files=()):
    """Return a folder that is treated as the root of a machine."""
    for name, text in dict(files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def said(findings):
    return [(finding.state, finding.found) for finding in findings]


@pytest.mark.parametrize(
    ("driver", "state", "words", "remedy"),
    [
        (
            OWN,
            "good",
            "driver 535.104.05: new enough for CUDA wheels 11, 12",
            "CUDA 13 need driver 580.65.06 or newer",
        ),
        (OPEN, "good", "driver 580.65.06: new enough for CUDA wheels 11, 12, 13", ""),
        (OWN.replace("535.104.05", "390.157"), "bad", "driver 390.157: too old for any wheel", "need driver"),
        ("", "bad", "its driver reports no version", "nvidia-smi"),
    ],
)
def test_a_driver_is_held_against_what_wheels_need(tmp_path, driver, state, words, remedy):
    (finding,) = doctor_software_checks.check_cuda(
        machine(tmp_path, {"proc/driver/nvidia/version": driver, "dev/nvidia0": ""})
    )
    assert (finding.state, words in finding.found, remedy in finding.remedy) == (state, True, True), finding
    assert bool(finding.remedy) is bool(remedy)


@pytest.mark.parametrize(("driver", "loaded"), [("", False), (OWN, True)])
def test_a_machine_without_a_gpu_is_told_so(tmp_path, driver, loaded):
    (finding,) = doctor_software_checks.check_cuda(machine(tmp_path, {"proc/driver/nvidia/version": driver}))
    assert finding.state == "note"
    assert finding.found.startswith("no GPU here")
    assert ("its driver is loaded" in finding.found) is loaded
    assert "on a machine with a GPU" in finding.remedy


def test_what_xla_would_run_on_is_told(tmp_path):
    assert said(doctor_software_checks.check_tpu(tmp_path))[0][0] == "note"
    assert said(doctor_software_checks.check_tpu(machine(tmp_path, {"dev/accel0": "", "dev/accel1": ""}))) == [
        ("good", "2 TPU devices (/dev/accel*)")
    ]


def test_modules_are_those_of_this_shell(tmp_path):
    lmod = {"LMOD_CMD": "/usr/share/lmod/lmod/libexec/lmod", "LMOD_VERSION": "8.7.18"}
    assert said(doctor_software_checks.check_modules(tmp_path, lmod)) == [("good", "Lmod 8.7.18")]
    assert said(doctor_software_checks.check_modules(tmp_path, {"MODULES_CMD": "/usr/lib/modulecmd.tcl"})) == [
        ("good", "environment modules")
    ]


def test_partitions_are_told_by_the_nodes_that_can_serve():
    found = list(
        doctor_software_checks.check_partitions(
            "debug*|up|2|idle\ndebug*|up|1|down*\nbig|drain|4|idle\nold|up|1|drain\n"
        )
    )
    assert [(finding.subject, finding.state) for finding in found] == [
        ("Slurm partition debug*", "good"), ("Slurm partition big", "note"), ("Slurm partition old", "note"),
    ]  # fmt: skip
    assert found[0].found == "nodes: 2 idle, 1 down*"
    assert "sinfo --list-reasons" in found[1].remedy
    assert [finding.state for finding in doctor_software_checks.check_partitions("debug*|up|2|down*\n")] == ["bad"]
    assert [finding.state for finding in doctor_software_checks.check_partitions("")] == ["bad"]


def test_what_holds_the_processes_of_a_job_is_told():
    assert doctor_software_checks.check_process_tracking(CONFIG).state == "good"
    loose = doctor_software_checks.check_process_tracking(CONFIG.replace("proctrack/cgroup", "proctrack/pgid"))
    assert (loose.state, "ProctrackType=proctrack/pgid" in loose.found) == ("note", True)
    assert "whole nodes" in loose.remedy


def test_a_controller_that_does_not_answer_is_told_with_what_to_ask(tmp_path, monkeypatch):
    if not shutil.which("sbatch"):
        pytest.skip("no Slurm commands here")
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr(doctor_software_checks, "_COMMAND_LIMIT_S", 1.0)
    monkeypatch.setattr(client, "_PROBE_S", 1.0)
    found = list(doctor_software_checks.check_slurm(tmp_path))
    assert [(finding.subject, finding.state) for finding in found] == [("Slurm controller", "bad")]
    assert "scontrol ping" in found[0].remedy
    launcher = next(
        finding for finding in machine_checks.check_launchers(tmp_path) if finding.subject == "launcher slurm"
    )
    assert launcher.state == "note"
    assert launcher.found.startswith("its controller does not answer: ")


def test_what_apptainer_may_do_here_is_told(tmp_path, monkeypatch):
    if apptainer_command.find_program() is None:
        pytest.skip("no Apptainer here")
    here = list(doctor_software_checks.check_apptainer(Path("/")))
    assert {finding.subject: finding.state for finding in here}["Apptainer's images"] == "good"
    assert ("Apptainer as root" in [finding.subject for finding in here]) is apptainer_command.is_unprivileged_root()
    monkeypatch.setattr(doctor_software_checks, "root_needs_namespace", lambda: True)
    monkeypatch.setattr(doctor_software_checks, "_command_output", lambda *_: (True, "/none"))
    bare = machine(tmp_path, {"proc/sys/user/max_user_namespaces": "0\n"})
    (finding, *_) = doctor_software_checks.check_apptainer(bare)
    assert finding.state == "bad"
    assert finding.found.startswith("no user namespaces (user.max_user_namespaces = 0); no /dev/fuse")
    assert "sudo sysctl user.max_user_namespaces=15000; modprobe fuse" in finding.remedy


def program(folder, name, text="exit 0"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_what_holds_a_memory_limit_of_a_process_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", lambda controller: (tmp_path, "cgroup v2"))
    assert said(doctor_software_checks.check_memory_limits_and_cache(tmp_path)) == [
        ("good", "enforced by a control group (cgroup v2)")
    ]
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", lambda controller: None)
    (finding,) = doctor_software_checks.check_memory_limits_and_cache(tmp_path)
    assert (finding.state, "enforced by RLIMIT_DATA" in finding.found) == ("note", True)
    assert "systemd-run --user --scope" in finding.remedy


def test_memory_nodes_that_cannot_be_bound_and_a_cache_without_programs_are_told(tmp_path, monkeypatch):
    nodes = machine(tmp_path, {"sys/devices/system/node/node0/cpulist": "0"})
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", lambda controller: (tmp_path, "cgroup v2"))
    assert said(doctor_software_checks.check_memory_limits_and_cache(nodes))[1:] == [
        ("good", "trials can be bound to memory nodes")
    ]
    monkeypatch.setattr(
        doctor_software_checks, "Place", lambda memory_nodes: Place(memory_nodes=(60,))
    )  # no such node exists
    monkeypatch.setattr(doctor_software_checks.os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    _, unbound, unstarted = doctor_software_checks.check_memory_limits_and_cache(nodes)
    assert (unbound.state, unbound.found) == ("note", "trials cannot be bound to a memory node: Invalid argument")
    assert (unstarted.state, "is mounted noexec" in unstarted.found) == ("bad", True)
    assert "ENVMATRIX_CACHE" in unstarted.remedy


def test_what_enroot_may_do_here_is_told(tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(doctor_software_checks.os, "geteuid", lambda: 1000)
    assert list(doctor_software_checks.check_enroot(tmp_path)) == []
    for name, text in (("enroot", "echo 3.5.0"), ("unsquashfs", ""), ("squashfuse", ""), ("fuse-overlayfs", "")):
        program(tools, name, text)
    assert said(doctor_software_checks.check_enroot(tmp_path)) == [("good", "version 3.5.0, unpacked by unsquashfs")]
    program(tools, "enroot", "echo no configuration >&2; exit 1")
    for name in ("unsquashfs", "squashfuse"):
        (tools / name).unlink()
    bare = machine(tmp_path / "bare", {"proc/sys/user/max_mnt_namespaces": "0\n"})
    bad, note = doctor_software_checks.check_enroot(bare)
    assert bad.state == "bad"
    assert bad.found.startswith("no mount namespaces (user.max_mnt_namespaces = 0); no unsquashfs; `enroot version`")
    assert bad.remedy.startswith("sudo sysctl user.max_mnt_namespaces=15000; install squashfs-tools; ")
    assert (note.state, note.remedy) == ("note", "install squashfuse on the nodes")


def test_a_process_that_ends_while_threads_are_counted_is_left_out(tmp_path, monkeypatch):
    """Guards against `the system refused: /proc/N/task`, if a process ends between two reads."""
    for process in ("8", "9"):
        (tmp_path / "proc" / process / "task" / "1").mkdir(parents=True)
        (tmp_path / "proc" / process / "task" / "1" / "stat").write_text("1 (a) S" + " 2" * 20)
    scan = os.scandir

    def ended(path="."):
        if str(path).endswith("9/task"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", ended)
    assert list(machine_checks._thread_ticks(tmp_path)) == [(8, 1)]
