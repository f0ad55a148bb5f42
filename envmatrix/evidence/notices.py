"""What one process showed that its user should know, each with its cause: the same sentences in every trial."""

from __future__ import annotations

from collections.abc import Iterator

from envmatrix.evidence.base import once_for_each
from envmatrix.evidence.evidence import Cpu, Evidence

#: More of an own program's CPU time must not have gone where nobody could look (bench/evidence/programs.py).
UNSEEN = 0.1
_RUNTIMES = ("libgomp", "libiomp5", "libomp")
_BIND = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def elsewhere(evidence: Evidence) -> Iterator[str]:
    """Say that work may have been done where neither the clock nor the environment of a trial reaches."""
    for name in evidence.left_running or ():
        yield f"it ended, but {name}, which it had started, ran on and was ended: what that does later is not timed"
    if evidence.served_by and not any(one.cuda and one.cuda.used for one in _all(evidence)):
        yield (
            f"it used a CPU for less than half of its time and was connected to {', '.join(evidence.served_by)}: "
            "no setting reaches what a server does there"
        )


def without_gpu(evidence: Evidence) -> Iterator[str]:
    """Say that a program looked for a GPU, did not find one and went on."""
    if any(one.cuda and one.cuda.looked_for and one.cuda.available is False for one in _all(evidence)):
        yield "it looked for a GPU, found none that PyTorch can use, and ran on the CPU"


def unverifiable(evidence: Evidence) -> Iterator[str]:
    """Say of which programs nothing will be verified, whatever an environment sets."""
    if (evidence.unseen_share or 0.0) > UNSEEN:
        yield (
            f"{evidence.unseen_share:.0%} of its CPU time was used by programs too short to be looked at: environments "
            "will be unproven (docs/workloads.md)"
        )
    names = sorted({
        str(program.name) for program in evidence.programs or ()
        if (seen := program.evidence or evidence).source == "outside" and seen.torch is None and _has_torch(seen)
    })  # fmt: skip
    if names:
        yield (
            f"{', '.join(names)} could not be asked what is in effect (it ended by os._exit or a signal, or runs with "
            "python -I or -S): OpenMP settings will be unproven"
        )


def _has_torch(evidence: Evidence) -> bool:
    return any("/libtorch_cpu.so" in path for path in evidence.libraries or ())


def _all(evidence: Evidence) -> list[Evidence]:
    return [evidence, *(program.evidence for program in evidence.programs or () if program.evidence)]


def oddities(seen: Evidence) -> Iterator[str]:
    """Yield a sentence for each thing about a process that makes its speed another than its settings say."""
    for name in seen.lost_preloads or ():
        yield f"LD_PRELOAD names {name} in it, which the loader could not load"
    copies = _copies(seen.libraries)
    if copies:
        listed = " and ".join(copies)
        yield f"{len(copies)} copies of an OpenMP runtime are loaded, each with a team of its own: {listed}"
    cpu = seen.cpu or Cpu()
    before, end, crowd = cpu.affinity_before or (), cpu.affinity_end or (), crowded(seen)
    if crowd:
        yield f"all of its {crowd[1]} threads may run on CPU {crowd[0]} alone, of the {len(before)} that it was given"
    elif 0 < len(end) < len(before):
        yield (
            f"its first thread may run on {len(end)} of {len(before)} CPUs in the end, and so may what it forks, such "
            f"as workers that load data: {_cause(seen)}"
        )


def crowded(seen: Evidence) -> tuple[str, int] | None:
    """Return the CPU on which all threads of a process sit, and how many they are, if it was given more CPUs."""
    cpu = seen.cpu or Cpu()
    placed = cpu.thread_affinity or {}
    threads = sum(placed.values())
    if len(placed) == 1 and threads > 1 and len(cpu.affinity_before or ()) > 1:
        (place,) = placed
        return (place, threads) if place.isdecimal() else None
    return None


@once_for_each
def _copies(libraries: list[str] | None) -> list[str]:
    """Return the files of the one OpenMP runtime of which several are loaded, shortened to what tells them apart."""
    for runtime in _RUNTIMES:
        found = sorted({path for path in libraries or () if path.rpartition("/")[2].startswith(runtime)})
        if len(found) > 1:
            return ["/".join(path.split("/")[-3:]) for path in found]
    return []


def _cause(seen: Evidence) -> str:
    given = [f"{name}={(seen.variables or {})[name]}" for name in _BIND if name in (seen.variables or {})]
    runtime = seen.openmp.library if seen.openmp and seen.openmp.library else "the OpenMP runtime"
    if given:
        return f"{runtime} binds it ({', '.join(given)})"
    return "no variable binds it, so the program or a library that it loads did"
