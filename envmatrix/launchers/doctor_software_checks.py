"""Findings of ``envmatrix doctor``, and its checks of installed software.

These are Slurm, CUDA, XLA, modules, Apptainer, Enroot, Podman and the local engine.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envmatrix.build.paths import project_paths
from envmatrix.engines.apptainer_command import find_program, is_unprivileged_root, root_needs_namespace
from envmatrix.engines.podman import FAST_STORAGE, SLOW_STORAGE, PodmanEngine
from envmatrix.engines.process_limits import memory_limit_mechanism
from envmatrix.errors import NoTrialError
from envmatrix.system import resource_paths
from envmatrix.system.cuda_driver import OLDEST_DRIVERS, loaded_driver, version_text
from envmatrix.system.host import has_gpu
from envmatrix.system.process import Order, Place, run, run_logged

State = Literal["good", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``bad`` distorts timings or stops a run, ``note`` is for information."""

    subject: str
    state: State
    found: str
    remedy: str = ""


def good(subject: str, found: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(subject, "good", found)


def note(subject: str, found: str, remedy: str = "") -> Finding:
    """Return something to know."""
    return Finding(subject, "note", found, remedy)


def bad(subject: str, found: str, remedy: str = "") -> Finding:
    """Return something that distorts timings or stops a run."""
    return Finding(subject, "bad", found, remedy)


def read_system_file(path: str, root: Path) -> str:
    """Return the text of a file of /proc or /sys below ``root``, '' if it cannot be read."""
    try:
        return (root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


_COMMAND_LIMIT_S = 15.0
_SLURM_COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "sacct")
#: States of nodes that can be given a job, as sinfo's %t writes them; a suffix such as `*` may follow.
_USABLE_STATE = re.compile(r"(idle|mix|alloc|comp)\W*")


def _command_output(*argv: str) -> tuple[bool, str]:
    """Return whether a command succeeded, and its output or the reason for its failure."""
    try:
        finished = run(argv, limit_s=_COMMAND_LIMIT_S)
    except NoTrialError as error:
        return False, error.message
    return finished.exit.ok, finished.stdout if finished.exit.ok else finished.last_words(1) or str(finished.exit)


def check_slurm(_root: Path) -> Iterator[Finding]:
    """Check Slurm: its commands, the controller, the partitions and the tracking of a job's processes."""
    if shutil.which("sbatch") is None:  # the launcher's finding reports it
        return
    missing_commands = [name for name in _SLURM_COMMANDS if shutil.which(name) is None]
    if missing_commands:
        yield bad("Slurm commands", f"no {', '.join(missing_commands)} on PATH", "install Slurm's client commands")
    has_answered, output = _command_output("sinfo", "--noheader", "--format=%P|%a|%D|%t")
    if not has_answered:
        remedy = "run `scontrol ping`; SLURM_CONF must point to the cluster's slurm.conf"
        yield bad("Slurm controller", f"no answer: {output}", remedy)
        return
    yield good("Slurm controller", "answers")
    yield from check_partitions(output)
    configured, output = _command_output("scontrol", "show", "config")
    if configured:
        yield check_process_tracking(output)


def check_partitions(sinfo_output: str) -> Iterator[Finding]:
    """Count the usable nodes of each partition in the output of ``sinfo --format=%P|%a|%D|%t``."""
    nodes: dict[str, list[tuple[str, int, str]]] = {}
    for line in sinfo_output.splitlines():
        name, up, count, node_state = ([*line.strip().split("|"), "", "", ""])[:4]
        nodes.setdefault(name, []).append((up, int(count) if count.isdecimal() else 0, node_state))
    if not nodes:
        yield bad("Slurm partitions", "there is none", "ask the cluster's administrators which account you need")
    for name, node_states in nodes.items():
        serving = sum(
            count for up, count, node_state in node_states if up == "up" and _USABLE_STATE.fullmatch(node_state)
        )
        text = ", ".join(f"{count} {node_state}" for _, count, node_state in node_states)
        state: State = "good" if serving else "bad" if name.endswith("*") else "note"
        remedy = "" if serving else "`sinfo --list-reasons` shows why; use another one with --partition"
        down = "" if node_states[0][0] == "up" else f" ({node_states[0][0]})"
        yield Finding(f"Slurm partition {name}", state, f"nodes: {text}{down}", remedy)


def check_process_tracking(config: str) -> Finding:
    """Check in ``scontrol show config`` whether cgroups track a job's processes and confine them to its CPUs."""
    pairs = (line.partition("=") for line in config.splitlines())
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    tracking, tasks = settings.get("ProctrackType", ""), settings.get("TaskPlugin", "")
    summary = f"ProctrackType={tracking or 'unknown'}, TaskPlugin={tasks or 'unknown'}"
    if tracking.endswith("cgroup") and "cgroup" in tasks:
        return good("Slurm cgroups", summary)
    remedy = "other jobs may use the same CPUs: request whole nodes (slurm: {options: --exclusive})"
    return note("Slurm cgroups", summary, remedy)


def check_cuda(root: Path) -> Iterator[Finding]:
    """Check for an NVIDIA GPU and for the CUDA wheels that its driver supports."""
    driver = loaded_driver(root)
    if not has_gpu(root):
        summary = "no GPU here (no /dev/nvidia0)" + (", but its driver is loaded" if driver else "")
        remedy = "run CUDA environments and workloads on a machine with a GPU; start a container with its GPUs"
        yield note("CUDA", summary, remedy)
    elif driver is None:
        remedy = "run `nvidia-smi`; /proc/driver/nvidia/version must be readable"
        yield bad("CUDA", "there is a GPU, but its driver reports no version", remedy)
    else:
        served = [major for major, oldest in OLDEST_DRIVERS.items() if driver >= oldest]
        newest = max(OLDEST_DRIVERS)
        summary = f"driver {version_text(driver)}: " + (
            f"new enough for CUDA wheels {', '.join(map(str, served))}" if served else "too old for any wheel"
        )
        oldest = version_text(OLDEST_DRIVERS[newest])
        remedy = "" if newest in served else f"wheels for CUDA {newest} need driver {oldest} or newer"
        yield Finding("CUDA", "good" if served else "bad", summary, remedy)


def check_tpu(root: Path) -> Iterator[Finding]:
    """Check which device PyTorch/XLA can use."""
    tpus = list((root / "dev").glob("accel[0-9]*"))
    if tpus:
        yield good("XLA", f"{len(tpus)} TPU devices (/dev/accel*)")
    else:
        remedy = "results of XLA levels are for this CPU, not for a TPU"
        yield note("XLA", "no TPU here (no /dev/accel0): XLA runs on the CPU (PJRT_DEVICE=CPU)", remedy)


def check_modules(_root: Path, variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check for Lmod or environment modules, which the key ``modules:`` and Slurm's ``--modules`` need."""
    for name, command in (("Lmod", "LMOD_CMD"), ("environment modules", "MODULES_CMD")):
        if command in variables:
            version = variables.get("LMOD_VERSION" if name == "Lmod" else "MODULES_VERSION", "")
            yield good("modules", f"{name} {version}".strip())
            return
    if shutil.which("sbatch"):
        remedy = "`--modules` needs them on the nodes: source their init script, or leave out `modules`"
        yield note("modules", "neither Lmod nor environment modules in this shell", remedy)


def check_memory_limits_and_cache(root: Path) -> Iterator[Finding]:
    """Check the local engine: how it limits memory, NUMA binding, and a cache folder that can run programs."""
    holder = memory_limit_mechanism()
    if holder == "RLIMIT_DATA":
        yield note(
            "local memory limits",
            "enforced by RLIMIT_DATA, for each process of a trial separately: no control group can be created here",
            "start envmatrix in its own control group: `systemd-run --user --scope envmatrix bench`",
        )
    else:
        yield good("local memory limits", f"enforced by a control group ({holder})")
    if (root / "sys/devices/system/node/node0").exists():
        yield _memory_nodes()
    folder = resource_paths.cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.statvfs(existing).f_flag & os.ST_NOEXEC:
        remedy = "point ENVMATRIX_CACHE to a folder on another file system"
        yield bad("local venvs", f"{existing} is mounted noexec: Python cannot start from there", remedy)


def _memory_nodes() -> Finding:
    """Check whether a process can be bound to memory node 0, as `memory_nodes` does."""
    try:
        run_logged(
            Order([sys.executable, "-I", "-S", "-c", ""], {}, None, _COMMAND_LIMIT_S, Place(memory_nodes=(0,))), None
        )
    except NoTrialError as error:
        why = error.message.rpartition(": ")[2]
        remedy = "in a container: start it with --cap-add SYS_NICE, or leave out `memory_nodes`"
        return note("local memory nodes", f"trials cannot be bound to a memory node: {why}", remedy)
    return good("local memory nodes", "trials can be bound to memory nodes")


def check_enroot(root: Path) -> Iterator[Finding]:
    """Check what Enroot needs (its doc/requirements.md): namespaces, and programs that unpack and mount squashfs."""
    program = shutil.which("enroot")
    if program is None:  # the engine's finding reports it
        return
    has_answered, version = _command_output(program, "version")
    problems = [*_namespace_problems(root)] if os.geteuid() != 0 else []
    if shutil.which("unsquashfs") is None:
        problems.append(("no unsquashfs", "install squashfs-tools"))
    if not has_answered:
        problems.append((f"`enroot version` fails: {version}", "check its configuration (enroot.conf)"))
    if problems:
        remedy = "; ".join(text for _, text in problems)
        yield bad("Enroot's images", "; ".join(problem for problem, _ in problems), remedy)
    else:
        yield good("Enroot's images", f"version {version.strip()}, unpacked by unsquashfs")
    unmounted = [name for name in ("squashfuse", "fuse-overlayfs") if shutil.which(name) is None]
    if unmounted:
        problem = f"no {' and no '.join(unmounted)} on this machine"
        remedy = f"install {' '.join(unmounted)} on the nodes"
        yield note("Enroot under Slurm", f"{problem}: Slurm jobs need both to mount the image", remedy)


def check_apptainer(root: Path) -> Iterator[Finding]:
    """Check how Apptainer can mount an image here, and whether root lacks privileges as in most containers."""
    program = find_program()
    if program is None:  # the engine's finding reports it
        return
    _, output = _command_output(program, "buildcfg", "LIBEXECDIR")
    starter = Path(output.strip()) / Path(program).name / "bin/starter-suid"
    setuid = starter.is_file() and bool(starter.stat().st_mode & stat.S_ISUID)
    problems = [*_namespace_problems(root), *_fuse_problems(root)]
    if setuid or (os.geteuid() == 0 and not root_needs_namespace()):
        mount_method = "its setuid starter" if setuid else "the kernel, as root"
        yield good("Apptainer's images", f"mounted by {mount_method}")
    elif problems:
        remedy = "; ".join(text for _, text in problems) + "; or install apptainer-suid"
        yield bad("Apptainer's images", "; ".join(problem for problem, _ in problems), remedy)
    else:
        yield good("Apptainer's images", "mounted by FUSE in a user namespace")
    if is_unprivileged_root():
        yield note(
            "Apptainer as root",
            "this root lacks CAP_SYS_RESOURCE, as in most containers",
            "envmatrix handles this; by hand: `apptainer run --userns X.sif`, "
            "`unshare --user --map-root-user apptainer build X.sif X.def`",
        )


def check_podman_storage(_root: Path) -> Iterator[Finding]:
    """Check how Podman keeps the files of a container."""
    engine = PodmanEngine(project_paths())
    if engine.unavailable() is None and engine.is_slow():
        yield bad("Podman's images", SLOW_STORAGE, FAST_STORAGE)


def _namespace_problems(root: Path) -> Iterator[tuple[str, str]]:
    for kind, name, disabling_value, enabling_value in (
        ("user", "user.max_user_namespaces", "0", "15000"),
        ("mount", "user.max_mnt_namespaces", "0", "15000"),
        ("user", "kernel.unprivileged_userns_clone", "0", "1"),
        ("user", "kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        if read_system_file(f"/proc/sys/{name.replace('.', '/')}", root) == disabling_value:
            yield f"no {kind} namespaces ({name} = {disabling_value})", f"sudo sysctl {name}={enabling_value}"


def _fuse_problems(root: Path) -> Iterator[tuple[str, str]]:
    if not (root / "dev/fuse").exists():
        yield "no /dev/fuse", "modprobe fuse (in a container: --device /dev/fuse)"
    if not any(map(shutil.which, ("squashfuse_ll", "squashfuse"))) and not _own_squashfuse():
        yield "no squashfuse", "install squashfuse"


def _own_squashfuse() -> bool:
    """Return whether Apptainer's package includes squashfuse, as those of Debian and Fedora do."""
    return any(Path("/usr").glob("lib*/*/*/bin/squashfuse*")) or any(Path("/usr").glob("lib*/*/bin/squashfuse*"))
