"""Notices about one process that its user should know, with causes; the same problem always gives the same sentence."""

from __future__ import annotations

from collections.abc import Iterator

from envmatrix.evidence.evidence_models import Cpu, Evidence
from envmatrix.evidence.model_base import once_for_each

#: Allowed share of a user's program's CPU time that cannot be inspected (bench/evidence/command_programs.py).
UNSEEN_SHARE = 0.1
_RUNTIMES = ("libgomp", "libiomp5", "libomp")
_BIND = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def work_outside_timing_notices(evidence: Evidence) -> Iterator[str]:
    """Yield notices about work that may have run outside the trial's timing and environment."""
    for name in evidence.left_running or ():
        yield (f"it ended, but {name}, which it had started, kept running and was stopped: its later work is not timed")
    if evidence.served_by and not any(process.cuda and process.cuda.used for process in _all_processes(evidence)):
        yield (
            "it used a CPU for less than half of its time and was connected to "
            f"{', '.join(evidence.served_by)}: no setting reaches a server's own work"
        )


def gpu_not_found_notice(evidence: Evidence) -> Iterator[str]:
    """Yield a notice if a program looked for a GPU, found none and ran on the CPU."""
    if any(
        process.cuda and process.cuda.looked_for and process.cuda.available is False
        for process in _all_processes(evidence)
    ):
        yield "it looked for a GPU, found none that PyTorch can use, and ran on the CPU"


def unverifiable_programs(evidence: Evidence) -> Iterator[str]:
    """Yield notices about programs whose settings cannot be verified in any environment."""
    if (evidence.unseen_share or 0.0) > UNSEEN_SHARE:
        yield (
            f"{evidence.unseen_share:.0%} of its CPU time was used by programs too short-lived to inspect: "
            "environments will count as not verified (docs/workloads.md)"
        )
    names = sorted(
        {
            str(program.name)
            for program in evidence.programs or ()
            if (seen := program.evidence or evidence).source == "outside" and seen.torch is None and _has_torch(seen)
        }
    )
    if names:
        yield (
            f"could not read the settings inside {', '.join(names)} (it ended by os._exit or a signal, or "
            "runs with python -I or -S): OpenMP settings will count as not verified"
        )


def _has_torch(evidence: Evidence) -> bool:
    return any("/libtorch_cpu.so" in path for path in evidence.libraries or ())


def _all_processes(evidence: Evidence) -> list[Evidence]:
    return [evidence, *(program.evidence for program in evidence.programs or () if program.evidence)]


def preload_openmp_and_binding_problems(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each problem that changes a process's speed regardless of its settings."""
    for name in evidence.lost_preloads or ():
        yield f"LD_PRELOAD in it names {name}, which the loader could not load"
    copies = _runtime_copies(evidence.libraries)
    if copies:
        copies_text = " and ".join(copies)
        yield f"{len(copies)} copies of an OpenMP runtime are loaded, each with its own threads: {copies_text}"
    cpu = evidence.cpu or Cpu()
    cpus_before, cpus_at_end, crowd = (
        cpu.affinity_before or (),
        cpu.affinity_end or (),
        shared_cpu_and_thread_count(evidence),
    )
    if crowd:
        yield (
            f"all of its {crowd[1]} threads are bound to CPU {crowd[0]}, one of the {len(cpus_before)} CPUs "
            "that it was given"
        )
    elif 0 < len(cpus_at_end) < len(cpus_before):
        yield (
            f"{_binding_cause(evidence)} bound the first thread to {len(cpus_at_end)} of {len(cpus_before)} CPUs. "
            "Processes that the program forks, such as data loader workers, are bound in the same way"
        )


def shared_cpu_and_thread_count(evidence: Evidence) -> tuple[str, int] | None:
    """Return the CPU shared by all threads of a process and their number, if it was given more CPUs."""
    cpu = evidence.cpu or Cpu()
    thread_counts = cpu.thread_affinity or {}
    threads = sum(thread_counts.values())
    if len(thread_counts) == 1 and threads > 1 and len(cpu.affinity_before or ()) > 1:
        (cpu_list,) = thread_counts
        return (cpu_list, threads) if cpu_list.isdecimal() else None
    return None


@once_for_each
def _runtime_copies(libraries: list[str] | None) -> list[str]:
    """Return the files of an OpenMP runtime that is loaded more than once, shortened to what differs."""
    for runtime in _RUNTIMES:
        paths = sorted({path for path in libraries or () if path.rpartition("/")[2].startswith(runtime)})
        if len(paths) > 1:
            return ["/".join(path.split("/")[-3:]) for path in paths]
    return []


def _binding_cause(evidence: Evidence) -> str:
    settings = [f"{name}={(evidence.variables or {})[name]}" for name in _BIND if name in (evidence.variables or {})]
    runtime = evidence.openmp.library if evidence.openmp and evidence.openmp.library else "the OpenMP runtime"
    if settings:
        return f"{runtime} ({', '.join(settings)})"
    return "the program or one of its libraries (not a variable)"
