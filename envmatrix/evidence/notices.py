"""What one process showed that its user should know, each with its cause: the same sentences in every trial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from envmatrix.evidence.evidence import Cpu, Evidence

#: More of an own program's CPU time must not have gone where nobody could look (bench/evidence/programs.py).
UNSEEN_SHARE = 0.1
_RUNTIMES = ("libgomp", "libiomp5", "libomp")
_BIND = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def work_elsewhere(evidence: Evidence) -> Iterator[str]:
    """Say that work may have been done where neither the clock nor the environment of a trial reaches."""
    for name in evidence.left_running or ():
        yield (f"it ended, but {name}, which it had started, kept running and was stopped: its later work is not timed")
    if evidence.served_by and not any(process.cuda and process.cuda.used for process in _all_processes(evidence)):
        yield (
            "it used a CPU for less than half of its time and was connected to "
            f"{', '.join(evidence.served_by)}: no setting reaches a server's own work"
        )


def missing_gpu(evidence: Evidence) -> Iterator[str]:
    """Say that a program looked for a GPU, did not find one and went on."""
    if any(
        process.cuda and process.cuda.looked_for and process.cuda.available is False
        for process in _all_processes(evidence)
    ):
        yield "it looked for a GPU, found none that PyTorch can use, and ran on the CPU"


def unverifiable_programs(evidence: Evidence) -> Iterator[str]:
    """Say of which programs nothing will be verified, whatever an environment sets."""
    if (evidence.unseen_share or 0.0) > UNSEEN_SHARE:
        yield (
            f"{evidence.unseen_share:.0%} of its CPU time was used by programs too short-lived to inspect: "
            "environments will count as not verified (docs/workloads.md)"
        )
    names = sorted({
        str(program.name) for program in evidence.programs or ()
        if (seen := program.evidence or evidence).source == "outside" and seen.torch is None and _has_torch(seen)
    })  # fmt: skip
    if names:
        yield (
            f"could not read the settings inside {', '.join(names)} (it ended by os._exit or a signal, or "
            "runs with python -I or -S): OpenMP settings will count as not verified"
        )


def _has_torch(evidence: Evidence) -> bool:
    return any("/libtorch_cpu.so" in path for path in evidence.libraries or ())


def _all_processes(evidence: Evidence) -> list[Evidence]:
    return [evidence, *(program.evidence for program in evidence.programs or () if program.evidence)]


def process_oddities(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each thing about a process that makes its speed another than its settings say."""
    for name in evidence.lost_preloads or ():
        yield f"LD_PRELOAD names {name} in it, which the loader could not load"
    copies = _runtime_copies(evidence)
    if copies:
        copies_text = " and ".join(copies)
        yield f"{len(copies)} copies of an OpenMP runtime are loaded, each with its own threads: {copies_text}"
    cpu = evidence.cpu or Cpu()
    cpus_before, cpus_at_end, crowd = cpu.affinity_before or (), cpu.affinity_end or (), crowded_cpu(evidence)
    if crowd:
        yield (
            f"all of its {crowd[1]} threads are bound to CPU {crowd[0]}, one of the {len(cpus_before)} CPUs "
            "that it was given"
        )
    elif 0 < len(cpus_at_end) < len(cpus_before):
        yield (
            f"its first thread is bound to {len(cpus_at_end)} of {len(cpus_before)} CPUs at the end, and so "
            f"are processes that it forks, such as workers that load data: {_binding_cause(evidence)}"
        )


def crowded_cpu(evidence: Evidence) -> tuple[str, int] | None:
    """Return the CPU on which all threads of a process sit, and how many they are, if it was given more CPUs."""
    cpu = evidence.cpu or Cpu()
    thread_counts = cpu.thread_affinity or {}
    threads = sum(thread_counts.values())
    if len(thread_counts) == 1 and threads > 1 and len(cpu.affinity_before or ()) > 1:
        (cpu_list,) = thread_counts
        return (cpu_list, threads) if cpu_list.isdecimal() else None
    return None


def _runtime_copies(evidence: Evidence) -> list[str]:
    """Return the files of the one OpenMP runtime of which several are loaded, shortened to what tells them apart."""
    for runtime in _RUNTIMES:
        paths = sorted({path for path in evidence.libraries or () if PurePosixPath(path).name.startswith(runtime)})
        if len(paths) > 1:
            return ["/".join(path.split("/")[-3:]) for path in paths]
    return []


def _binding_cause(evidence: Evidence) -> str:
    settings = [f"{name}={(evidence.variables or {})[name]}" for name in _BIND if name in (evidence.variables or {})]
    runtime = evidence.openmp.library if evidence.openmp and evidence.openmp.library else "the OpenMP runtime"
    if settings:
        return f"{runtime} binds it ({', '.join(settings)})"
    return "no variable binds it, so the program or one of its libraries did"
