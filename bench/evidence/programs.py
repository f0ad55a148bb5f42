"""Evidence on a command: on its busiest program, and on every other program that did a share of the work."""

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

#: CPU time is counted in ticks: a process may lose one of user time and one of system time.
_LOST_S = 0.02
#: NCCL's log of the process with this id, in the probes' folder.
_NCCL = "nccl-{}.log"
_GPUS = "/dev/nvidia[0-9]*"
#: Parts of the evidence that checks use, compared to decide whether two processes are alike.
_COMPARED_PARTS = ("malloc", "openmp", "torch", "onednn", "parallel", "preloaded", "variables")
#: Programs that compile kernels for torch.compile and Triton; the measured work is not theirs.
_COMPILER = re.compile(
    r"(.+-)?(cc1(plus)?|as|collect2|ld(\.\w+)?|(g\+\+|gcc|c\+\+|cc|clang(\+\+)?)(-\d+)?|nvcc|cicc|ptxas|fatbinary)\Z"
)
#: The largest number of programs reported for one command.
_MAX_PROGRAMS = 20
#: The largest number of own settings reported for one command.
_MAX_SETTINGS = 50
Probe = dict[str, Any]
_ProbedProgram = tuple[Program, Optional[Probe]]


def nccl_variables(folder: str) -> dict[str, str]:
    """Return variables that make NCCL log its settings to the probes' folder, or {} without a GPU."""
    return observed.nccl_log_variables(os.path.join(folder, _NCCL.format("%p"))) if glob.glob(_GPUS) else {}


def evidence(folder: str, watched: Watch, cpu_s: float, *, in_turns: bool = False) -> tuple[dict[str, Any], int]:
    """Return (evidence, nanoseconds that probing added) of a command that used ``cpu_s`` CPU seconds in all.

    ``folder`` contains what probes wrote when their programs ended. A program is stopped between the turns of an
    interleaved run, which its own clock includes. With ``in_turns`` the added time is therefore the probe's CPU time.
    """
    probes = _probes(folder)
    _settle_cpu_times(watched, probes)
    uses_torch = any(probe["evidence"].get("torch") for probe in probes.values())
    compilers = [program for program in watched.programs() if uses_torch and _COMPILER.match(program.name)]
    others = [program for program in watched.programs() if not (_is_ours(program) or program in compilers)]
    pairs = _pair_with_probes(others, probes)
    _read_notes(folder, pairs)
    own_s = sum(sum(probe["probe_cpu_s"]) for probe in probes.values())
    compilers_s = sum(program.cpu_s for program in compilers)
    total_s = max(cpu_s - own_s - compilers_s, sum(program.cpu_s for program, _ in pairs), 1e-9)
    unseen_s = total_s - sum(program.cpu_s for program, _ in pairs) - _LOST_S * (1 + watched.processes)
    at_work, left_s = _working_programs(_merge_alike(pairs, WORKS * total_s), WORKS * total_s)
    unseen_s = max(0.0, unseen_s) + left_s
    first_evidence = (
        _program_evidence(*at_work[0], pairs) if at_work else _program_evidence(Program(watched.pid, ""), None)
    )
    shares = [
        dict(_share(program, total_s), evidence=_program_evidence(program, probe, pairs) if number else None)
        for number, (program, probe) in enumerate(at_work)
    ]
    # The wall time includes the first process's own probe; if that is a shell, take the busiest program's.
    main = probes.get(watched.pid) or next((probe for _, probe in pairs if probe), None)
    described = dict(
        first_evidence, programs=shares, unseen_share=unseen_s / total_s, step_thread=main and main.get("step_thread"),
        own_settings=_own_settings(folder, [program for program, _ in at_work]),
    )  # fmt: skip
    if main is None:
        return described, 0
    return described, round(1e9 * sum(main["probe_cpu_s"])) if in_turns else main["probe_ns"]


def _merge_alike(pairs: list[_ProbedProgram], works_s: float) -> list[_ProbedProgram]:
    """Return the programs with small, alike ones merged: together they may do a share of the work."""
    merged_pairs: dict[object, _ProbedProgram] = {}
    for program, probe in pairs:
        likeness = _claims_key(program, probe) if program.cpu_s < works_s else id(program)
        merged_program, _ = merged_pairs.setdefault(likeness, (program, probe))
        if merged_program is not program:
            merged_program.cpu_s += program.cpu_s
            merged_program.threads = max(merged_program.threads, program.threads)
            merged_program.affinities.update(program.affinities)
    return sorted(merged_pairs.values(), key=lambda pair: -pair[0].cpu_s)


def _claims_key(program: Program, probe: Probe | None) -> str:
    """Return a text of everything that checks can use; equal texts mean that programs are alike."""
    if probe is None:
        shown_variables = None if program.variables is None else sorted(variables.all_shown(program.variables).items())
        return repr((program.name, program.path, sorted(program.libraries or ()), shown_variables, program.threads_set))
    known_evidence = _program_evidence(program, probe)
    return repr([known_evidence.get(part) for part in _COMPARED_PARTS])


def _working_programs(pairs: list[_ProbedProgram], works_s: float) -> tuple[list[_ProbedProgram], float]:
    """Return the largest programs until less than ``works_s`` is left, and the CPU time left out beyond that limit."""
    left_s, count = sum(program.cpu_s for program, _ in pairs), 0
    for program, _ in pairs:
        if (count and left_s < works_s) or count == _MAX_PROGRAMS:
            break
        left_s, count = left_s - program.cpu_s, count + 1
    return pairs[:count], left_s if left_s >= works_s else 0.0


def _is_ours(program: Program) -> bool:
    return program.variables is not None and program.variables.get("BENCH_PROBE") == ""


def probing_s(folder: str, pid: int) -> float:
    """Return the CPU seconds that the probe used at the end of a process; 0 if it wrote nothing."""
    note_text = text(os.path.join(folder, f"{pid}.json"))
    return float(json.loads(note_text)["probe_cpu_s"][0]) if note_text else 0.0


def _probes(folder: str) -> dict[int, Probe]:
    probes = {}
    for name in os.listdir(folder):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                probes[int(name[:-5])] = json.load(file)
    looked = set((text(os.path.join(folder, "gpus")) or "").split())
    for pid, probe in probes.items():
        if probe["evidence"].get("cuda"):
            probe["evidence"]["cuda"]["looked_for"] = str(pid) in looked
        nccl_settings = observed.nccl_settings(os.path.join(folder, _NCCL.format(pid)))
        if nccl_settings is not None:
            probe["evidence"]["parallel"] = {"nccl": nccl_settings}
    return probes


def _read_notes(folder: str, pairs: list[_ProbedProgram]) -> None:
    """Give each program the thread counts that it requested, including those of forks that did a share of its work.

    The last program of a process also answers for those it was before an ``exec``.
    """
    programs = sorted((program for program, _ in pairs), key=lambda program: program.number)
    owners = {pid: program for program in programs for pid in program.of_process}
    owners.update((program.pid, program) for program in programs)
    thread_cpu_s: dict[tuple[int, int], float] = {}
    for words in re.findall(r"^(\d+) (\d+)$", text(os.path.join(folder, "threads")) or "", re.MULTILINE):
        pid, number = map(int, words)
        if pid in owners:
            program = owners[pid]
            cpu_s = program.cpu_s if pid == program.pid else program.of_process[pid]
            thread_cpu_s[program.pid, number] = thread_cpu_s.get((program.pid, number), 0.0) + cpu_s
    for (pid, number), cpu_s in thread_cpu_s.items():
        if cpu_s >= WORKS * owners[pid].cpu_s:
            owners[pid].threads_set.append(number)


def _own_settings(folder: str, programs: Sequence[Program]) -> list[dict[str, str]]:
    """Return what these programs set themselves, once each, with the line that did."""
    pids = {pid for program in programs for pid in (program.pid, *program.of_process)}
    notes = [line.split("\t") for line in (text(os.path.join(folder, "settings")) or "").splitlines()]
    requests = {tuple(note[1:]): None for note in notes if len(note) == 4 and int(note[0]) in pids}
    return [dict(zip(("name", "value", "where"), setting)) for setting in list(requests)[:_MAX_SETTINGS]]


def _settle_cpu_times(watched: Watch, probes: dict[int, Probe]) -> None:
    """Add CPU time used after processes were last seen, from their own probes and from their parents' counters.

    The rest of a parent's count belongs to children that ended meanwhile, if it is below their known time. A larger
    rest may belong to programs that were never seen, and is not assigned.
    """
    for pid, probe in probes.items():
        own_programs = [program for program in watched.programs() if pid in program.of_process]
        if own_programs:
            own_s = probe["cpu_s"] + probe["probe_cpu_s"][0]
            left_s = own_s - sum(program.of_process[pid] for program in own_programs)
            max(own_programs, key=lambda program: program.number).took(pid, max(0.0, left_s))
    reaped_pids = {pid for reaped in watched.reaped for pid, _, _ in reaped.ended}
    for reaped in watched.reaped:
        cpu_s_by_pid = {pid: max(seen_s, _total_cpu_s(probes.get(pid))) for pid, _, seen_s in reaped.ended}
        others_s = sum(
            _total_cpu_s(probe)
            for pid, probe in probes.items()
            if pid not in reaped_pids
            and probe.get("parent") == reaped.parent
            and reaped.from_s < probe.get("ended_s", 0.0) <= reaped.to_s
        )
        rest_s = reaped.cpu_s - others_s - sum(cpu_s_by_pid.values())
        if 0.0 < rest_s <= sum(cpu_s_by_pid.values()):
            pid, program, _ = max(reaped.ended, key=lambda process: cpu_s_by_pid[process[0]])
            program.took(pid, rest_s)


def _total_cpu_s(probe: Probe | None) -> float:
    """Return the CPU time that a process knew at its end, including children that it had waited for."""
    return probe["cpu_s"] + probe.get("children_s", 0.0) + sum(probe["probe_cpu_s"]) if probe else 0.0


def _pair_with_probes(programs: list[Program], probes: dict[int, Probe]) -> list[_ProbedProgram]:
    """Return every program with its probe, or None; a process's probe belongs to the last program it became."""
    last_by_pid = {program.pid: program for program in sorted(programs, key=lambda program: program.number)}
    pairs: list[_ProbedProgram] = []
    for program in programs:
        probe = probes.get(program.pid) if last_by_pid[program.pid] is program else None
        if probe:
            program.cpu_s -= probe["probe_cpu_s"][0]
        pairs.append((program, probe))
    # Programs that began and ended between two samples.
    pairs += [
        (Program(pid, "python", cpu_s=probe["cpu_s"]), probe) for pid, probe in probes.items() if pid not in last_by_pid
    ]
    return pairs


def _program_evidence(program: Program, probe: Probe | None, pairs: Sequence[_ProbedProgram] = ()) -> dict[str, Any]:
    program_part = _unprobed_evidence(program, pairs) if probe is None else probe["evidence"]
    torch = dict(program_part["torch"] or ({"threads_set": ()} if program.threads_set else {}))
    if torch:
        torch["threads_set"] = program.threads_set
    # LD_PRELOAD of the program may differ from the list that this process was given.
    mapped = outside.preloaded_files(outside.preload_names(), program_part["libraries"] or program.libraries)
    if program_part["libraries"] is None and not all((mapped or {}).values()):
        mapped = None
    return dict(program_part, torch=torch or None, preloaded=mapped, source="outside" if probe is None else "probe")


def _unprobed_evidence(program: Program, pairs: Sequence[_ProbedProgram]) -> dict[str, Any]:
    """Return the evidence of a program without a probe, completed by a program that was started alike."""
    for twin, probe in pairs:
        outside_evidence = outside.evidence_from_twin(program, twin, probe["evidence"]) if probe else None
        if outside_evidence:
            return outside_evidence
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
