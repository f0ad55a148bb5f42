"""The evidence of a command: of the program that worked most, and of every other one that did its share of the work."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Sequence
from typing import Any, Optional

from bench import variables
from bench.evidence import outside
from bench.evidence.reading import text
from bench.evidence.tree import WORKS, Program, Watch
from bench.parallel import observed

#: The kernel counts in ticks, and a process may lose one of each kind.
_LOST_S = 0.02
#: What NCCL says in a process of this number, in the folder of the probes.
_NCCL = "nccl-{}.log"
_GPUS = "/dev/nvidia[0-9]*"
#: Parts of the evidence that claims are held against and in which two processes of a program may be alike.
_HELD = ("malloc", "openmp", "torch", "onednn", "parallel", "preloaded", "variables")
#: So many programs of one command are told of.
_MOST = 20
Probe = dict[str, Any]
_Asked = tuple[Program, Optional[Probe]]


def asked_of_nccl(folder: str) -> dict[str, str]:
    """Return variables that have each process' NCCL tell the folder of the probes what it takes; without a GPU {}."""
    return observed.asked_of_nccl(os.path.join(folder, _NCCL.format("%p"))) if glob.glob(_GPUS) else {}


def evidence(folder: str, watched: Watch, cpu_s: float, *, in_turns: bool = False) -> tuple[dict[str, Any], int]:
    """Return (evidence, nanoseconds that probing added) of a command that took ``cpu_s`` CPU seconds in all.

    ``folder`` holds what programs that could be asked wrote at their end. What they did then ran beside nothing else of
    theirs: where they stood still between turns, which their clocks do not know, it is the CPU time that it took.
    """
    probes = _probes(folder)
    _settle(watched, probes)
    found = _asked([program for program in watched.programs() if not _is_ours(program)], probes)
    _read_notes(folder, found)
    own_s = sum(sum(probe["probe_cpu_s"]) for probe in probes.values())
    whole = max(cpu_s - own_s, sum(program.cpu_s for program, _ in found), 1e-9)
    unseen_s = whole - sum(program.cpu_s for program, _ in found) - _LOST_S * (1 + watched.processes)
    at_work, left_s = _at_work(_merged(found, WORKS * whole), WORKS * whole)
    unseen_s = max(0.0, unseen_s) + left_s
    first = _of(*at_work[0], found) if at_work else _of(Program(watched.pid, ""), None)
    shares = [
        dict(_share(program, whole), evidence=_of(program, probe, found) if number else None)
        for number, (program, probe) in enumerate(at_work)
    ]
    # The first process's own probe ran inside its wall time; behind a shell it is the one of whoever worked most.
    main = probes.get(watched.pid) or next((probe for _, probe in found if probe), None)
    described = dict(
        first, programs=shares, unseen_share=unseen_s / whole, step_thread=main and main.get("step_thread")
    )
    if main is None:
        return described, 0
    return described, round(1e9 * sum(main["probe_cpu_s"])) if in_turns else main["probe_ns"]


def _merged(found: list[_Asked], works_s: float) -> list[_Asked]:
    """Return the programs, small ones that are alike as one: many of them may do together what none does alone."""
    merged: dict[object, _Asked] = {}
    for program, probe in found:
        alike = _kind(program, probe) if program.cpu_s < works_s else id(program)
        into, _ = merged.setdefault(alike, (program, probe))
        if into is not program:
            into.cpu_s += program.cpu_s
            into.threads = max(into.threads, program.threads)
            into.affinities.update(program.affinities)
    return sorted(merged.values(), key=lambda pair: -pair[0].cpu_s)


def _kind(program: Program, probe: Probe | None) -> str:
    """Return one text for all that claims may be held against, the same in programs that are alike."""
    if probe is None:
        given = None if program.variables is None else sorted(variables.all_shown(program.variables).items())
        return repr((program.name, program.path, sorted(program.libraries or ()), given, program.threads_set))
    told = _of(program, probe)
    return repr([told.get(part) for part in _HELD])


def _at_work(found: list[_Asked], works_s: float) -> tuple[list[_Asked], float]:
    """Return those that work, the largest of the rest until less than ``works_s`` is left, and what was too much."""
    left_s, taken = sum(program.cpu_s for program, _ in found), 0
    for program, _ in found:
        if (taken and left_s < works_s) or taken == _MOST:
            break
        left_s, taken = left_s - program.cpu_s, taken + 1
    return found[:taken], left_s if left_s >= works_s else 0.0


def _is_ours(program: Program) -> bool:
    return program.variables is not None and program.variables.get("BENCH_PROBE") == ""


def probing_s(folder: str, pid: int) -> float:
    """Return how much CPU time (seconds) the probe took at the end of a process; 0: it has none, or did not end so."""
    told = text(os.path.join(folder, f"{pid}.json"))
    return float(json.loads(told)["probe_cpu_s"][0]) if told else 0.0


def _probes(folder: str) -> dict[int, Probe]:
    found = {}
    for name in os.listdir(folder):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found[int(name[:-5])] = json.load(file)
    looked = set((text(os.path.join(folder, "gpus")) or "").split())
    for pid, probe in found.items():
        if probe["evidence"].get("cuda"):
            probe["evidence"]["cuda"]["looked_for"] = str(pid) in looked
        taken = observed.taken_by_nccl(os.path.join(folder, _NCCL.format(pid)))
        if taken is not None:
            probe["evidence"]["parallel"] = {"nccl": taken}
    return found


def _read_notes(folder: str, found: list[_Asked]) -> None:
    """Give each program the numbers of threads that it asked for, and those of its forks that did a share of its work.

    What a process became by ``exec`` answers for what it was before.
    """
    programs = sorted((program for program, _ in found), key=lambda program: program.number)
    owners = {pid: program for program in programs for pid in program.of_process}
    owners.update((program.pid, program) for program in programs)
    taken: dict[tuple[int, int], float] = {}
    for words in re.findall(r"^(\d+) (\d+)$", text(os.path.join(folder, "threads")) or "", re.MULTILINE):
        pid, number = map(int, words)
        if pid in owners:
            program = owners[pid]
            cpu_s = program.cpu_s if pid == program.pid else program.of_process[pid]
            taken[program.pid, number] = taken.get((program.pid, number), 0.0) + cpu_s
    for (pid, number), cpu_s in taken.items():
        if cpu_s >= WORKS * owners[pid].cpu_s:
            owners[pid].threads_set.append(number)


def _settle(watched: Watch, probes: dict[int, Probe]) -> None:
    """Count what processes took after they were last seen: by what they said themselves, and what their parents know.

    What a parent was told beyond that is of whoever ended meanwhile, if it is less than what is known of those; what is
    more is nobody's: it may be of programs that nobody saw.
    """
    for pid, probe in probes.items():
        mine = [program for program in watched.programs() if pid in program.of_process]
        if mine:
            own_s = probe["cpu_s"] + probe["probe_cpu_s"][0]
            left_s = own_s - sum(program.of_process[pid] for program in mine)
            max(mine, key=lambda program: program.number).took(pid, max(0.0, left_s))
    seen = {pid for reaped in watched.reaped for pid, _, _ in reaped.ended}
    for reaped in watched.reaped:
        known = {pid: max(seen_s, _all_s(probes.get(pid))) for pid, _, seen_s in reaped.ended}
        others_s = sum(
            _all_s(probe) for pid, probe in probes.items()
            if pid not in seen and probe.get("parent") == reaped.parent
            and reaped.from_s < probe.get("ended_s", 0.0) <= reaped.to_s
        )  # fmt: skip
        rest_s = reaped.cpu_s - others_s - sum(known.values())
        if 0.0 < rest_s <= sum(known.values()):
            pid, program, _ = max(reaped.ended, key=lambda one: known[one[0]])
            program.took(pid, rest_s)


def _all_s(probe: Probe | None) -> float:
    """Return the CPU time that a process knew of at its end, those that it had waited for included."""
    return probe["cpu_s"] + probe.get("children_s", 0.0) + sum(probe["probe_cpu_s"]) if probe else 0.0


def _asked(seen: list[Program], probes: dict[int, Probe]) -> list[_Asked]:
    """Return every program with what it said of itself: the last one that its process became, nobody else."""
    last = {program.pid: program for program in sorted(seen, key=lambda program: program.number)}
    found: list[_Asked] = []
    for program in seen:
        probe = probes.get(program.pid) if last[program.pid] is program else None
        if probe:
            program.cpu_s -= probe["probe_cpu_s"][0]
        found.append((program, probe))
    # What began and ended between two looks.
    found += [(Program(pid, "python", cpu_s=probe["cpu_s"]), probe) for pid, probe in probes.items() if pid not in last]
    return found


def _of(program: Program, probe: Probe | None, found: Sequence[_Asked] = ()) -> dict[str, Any]:
    seen = _untold(program, found) if probe is None else probe["evidence"]
    torch = dict(seen["torch"] or ({"threads_set": ()} if program.threads_set else {}))
    if torch:
        torch["threads_set"] = program.threads_set
    # A program's own list of what it should have preloaded may be another than the one that it was given.
    mapped = outside.preloaded(outside.wanted(), seen["libraries"] or program.libraries)
    if seen["libraries"] is None and not all((mapped or {}).values()):
        mapped = None
    return dict(seen, torch=torch or None, preloaded=mapped, source="outside" if probe is None else "probe")


def _untold(program: Program, found: Sequence[_Asked]) -> dict[str, Any]:
    """Return what is seen of a program that told nothing, and what one that was started alike told."""
    for twin, probe in found:
        seen = outside.like(program, twin, probe["evidence"]) if probe else None
        if seen:
            return seen
    return outside.evidence(program)


def _share(program: Program, whole_s: float) -> dict[str, Any]:
    return {
        "pid": program.pid,
        "name": program.name,
        "path": program.path,
        "cpu_s": round(program.cpu_s, 4),
        "share": round(program.cpu_s / whole_s, 4),
        "threads": program.threads or None,
        "busy_threads": program.busy.get(outside.busiest(program)),
    }
