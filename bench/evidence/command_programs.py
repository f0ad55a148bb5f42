"""Evidence on a command: on its busiest program, and on every other program that did a share of the work."""

from __future__ import annotations

import glob
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from bench import recorded_variables
from bench.evidence import program_from_outside
from bench.evidence.proc_files import TICKS_PER_S, Stat, descendants
from bench.evidence.process_tree_watch import WORKS, Program, Watch
from bench.evidence.reading import text
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
#: Seconds that helpers get to exit after the command, and the CPU seconds from which a program counts as working.
_ALONE_S, _WORKED_S = 1.0, 0.05
_PAUSE_S = 0.005
#: The largest number of programs reported for one command.
_MAX_PROGRAMS = 20
#: The largest number of own settings reported for one command.
_MAX_SETTINGS = 50


def nccl_logging_variables(folder: str) -> dict[str, str]:
    """Return variables that make NCCL log its settings to the probes' folder, or {} without a GPU."""
    return observed.nccl_log_variables(os.path.join(folder, _NCCL.format("%p"))) if glob.glob(_GPUS) else {}


def evidence_and_probing_ns(
    folder: str, watched: Watch, cpu_s: float, *, in_turns: bool = False
) -> tuple[dict[str, Any], int]:
    """Return (evidence, nanoseconds that probing added) of a command that used ``cpu_s`` CPU seconds in all.

    ``folder`` contains what probes wrote when their programs ended. A program is stopped between the turns of an
    interleaved run, which its own clock includes. With ``in_turns`` the added time is therefore the probe's CPU time.
    """
    probes = _probes(folder)
    _settle_cpu_times(watched, probes)
    uses_torch = any(probe["evidence"].get("torch") for probe in probes.values())
    compilers = [program for program in watched.programs() if uses_torch and _COMPILER.match(program.name)]
    others = [program for program in watched.programs() if not (_is_ours(program) or program in compilers)]
    programs = _assign_probes(others, probes)
    _read_notes(folder, programs)
    own_s = sum(sum(probe["probe_cpu_s"]) for probe in probes.values())
    seen_s = sum(program.cpu_s for program in programs)
    total_s = max(cpu_s - own_s - sum(program.cpu_s for program in compilers), seen_s, 1e-9)
    unseen_s = max(0.0, total_s - seen_s - _LOST_S * (1 + watched.processes))
    at_work, left_s = _working_programs(_merge_alike(programs, WORKS * total_s), WORKS * total_s)
    first = at_work[0] if at_work else Program(watched.pid, "")
    shares = [
        dict(_share(program, total_s), evidence=_program_evidence(program, programs) if number else None)
        for number, program in enumerate(at_work)
    ]
    # The wall time includes the first process's own probe; if that is a shell, take the busiest program's.
    main = probes.get(watched.pid) or next((program.probe for program in programs if program.probe), None)
    described = dict(
        _program_evidence(first, programs if at_work else ()), programs=shares,
        unseen_share=(unseen_s + left_s) / total_s, step_thread=main and main.get("step_thread"),
        own_settings=_own_settings(folder, at_work),
    )  # fmt: skip
    if main is None:
        return described, 0
    return described, round(1e9 * sum(main["probe_cpu_s"])) if in_turns else main["probe_ns"]


def _merge_alike(programs: list[Program], works_s: float) -> list[Program]:
    """Return the programs with small, alike ones merged: together they may do a share of the work."""
    merged: dict[object, Program] = {}
    for program in programs:
        first = merged.setdefault(_claims_key(program) if program.cpu_s < works_s else id(program), program)
        if first is not program:
            first.cpu_s += program.cpu_s
            first.threads = max(first.threads, program.threads)
            first.affinities.update(program.affinities)
    return sorted(merged.values(), key=lambda program: -program.cpu_s)


def _claims_key(program: Program) -> str:
    """Return a text of everything that checks can use; equal texts mean that programs are alike."""
    if program.probe is None:
        shown_variables = (
            None if program.variables is None else sorted(recorded_variables.recorded_texts(program.variables).items())
        )
        return repr((program.name, program.path, sorted(program.libraries or ()), shown_variables, program.threads_set))
    known_evidence = _program_evidence(program)
    return repr([known_evidence.get(part) for part in _COMPARED_PARTS])


def _working_programs(programs: list[Program], works_s: float) -> tuple[list[Program], float]:
    """Return the largest programs until less than ``works_s`` is left, and the CPU time left out beyond that limit."""
    left_s, count = sum(program.cpu_s for program in programs), 0
    for program in programs:
        if (count and left_s < works_s) or count == _MAX_PROGRAMS:
            break
        left_s, count = left_s - program.cpu_s, count + 1
    return programs[:count], left_s if left_s >= works_s else 0.0


def _is_ours(program: Program) -> bool:
    return program.variables is not None and program.variables.get("BENCH_PROBE") == ""


def _probing_s(folder: str, pid: int) -> float:
    """Return the CPU seconds that the probe used at the end of a process; 0 if it wrote nothing."""
    note_text = text(os.path.join(folder, f"{pid}.json"))
    return float(json.loads(note_text)["probe_cpu_s"][0]) if note_text else 0.0


def left_running(folder: str) -> list[str]:
    """Return the names of programs left running below this process, after its command has ended.

    Helper processes exit by themselves, without work, when the command is gone; they get a moment for that.
    Our own probe's work at the end of a process, of which it left a note in ``folder``, does not count.
    """
    deadline, first_seen = time.monotonic() + _ALONE_S, dict[int, Stat]()
    while True:
        still_running = descendants(os.getpid())
        first_seen = {**still_running, **first_seen}
        running = [pid for pid, stat in still_running.items() if stat.state not in "ZX"]
        if not running or time.monotonic() > deadline:
            took = {pid: (stat.ticks - first_seen[pid].ticks) / TICKS_PER_S for pid, stat in still_running.items()}
            worked = [pid for pid, cpu_s in took.items() if cpu_s - _probing_s(folder, pid) >= _WORKED_S]
            return sorted({still_running[pid].name for pid in (*running, *worked)})
        time.sleep(_PAUSE_S)


def _probes(folder: str) -> dict[int, dict[str, Any]]:
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


def _read_notes(folder: str, programs: list[Program]) -> None:
    """Give each program the thread counts that it requested, including those of forks that did a share of its work.

    The last program of a process also answers for those it was before an ``exec``.
    """
    programs = sorted(programs, key=lambda program: program.number)
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


def _settle_cpu_times(watched: Watch, probes: dict[int, dict[str, Any]]) -> None:
    """Add CPU time used after processes were last seen, from their own probes and from their parents' counters.

    The rest of a parent's count belongs to children that ended meanwhile, if it is below their known time. A larger
    rest may belong to programs that were never seen, and is not assigned.
    """
    for pid, probe in probes.items():
        own_programs = [program for program in watched.programs() if pid in program.of_process]
        if own_programs:
            own_s = probe["cpu_s"] + probe["probe_cpu_s"][0]
            left_s = own_s - sum(program.of_process[pid] for program in own_programs)
            max(own_programs, key=lambda program: program.number).add_cpu_time(pid, max(0.0, left_s))
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
            program.add_cpu_time(pid, rest_s)


def _total_cpu_s(probe: dict[str, Any] | None) -> float:
    """Return the CPU time that a process knew at its end, including children that it had waited for."""
    return probe["cpu_s"] + probe.get("children_s", 0.0) + sum(probe["probe_cpu_s"]) if probe else 0.0


def _assign_probes(programs: list[Program], probes: dict[int, dict[str, Any]]) -> list[Program]:
    """Return all programs, with their probes; a process's probe belongs to the last program it became."""
    last_by_pid = {program.pid: program for program in sorted(programs, key=lambda program: program.number)}
    for pid, program in last_by_pid.items():
        program.probe = probes.get(pid)
        program.cpu_s -= program.probe["probe_cpu_s"][0] if program.probe else 0.0
    # Programs that began and ended between two samples.
    unseen = [pid for pid in probes if pid not in last_by_pid]
    return [*programs, *(Program(pid, "python", probe=probes[pid]) for pid in unseen)]


def _program_evidence(program: Program, programs: Sequence[Program] = ()) -> dict[str, Any]:
    """Return a program's evidence; without a probe, it is completed by one of ``programs`` that was started alike."""
    if program.probe:
        program_part = program.probe["evidence"]
    else:
        twins = (program_from_outside.evidence_from_twin(program, twin) for twin in programs if twin.probe)
        program_part = next(filter(None, twins), None) or program_from_outside.evidence(program)
    torch = dict(program_part["torch"] or ({"threads_set": ()} if program.threads_set else {}))
    if torch:
        torch["threads_set"] = program.threads_set
    # LD_PRELOAD of the program may differ from the list that this process was given.
    mapped = program_from_outside.preloaded_files(
        program_from_outside.preload_names(), program_part["libraries"] or program.libraries
    )
    if program_part["libraries"] is None and not all((mapped or {}).values()):
        mapped = None
    return dict(program_part, torch=torch or None, preloaded=mapped, source="probe" if program.probe else "outside")


def _share(program: Program, whole_s: float) -> dict[str, Any]:
    return {
        "pid": program.pid,
        "name": program.name,
        "path": program.path,
        "cpu_s": round(program.cpu_s, 4),
        "share": round(program.cpu_s / whole_s, 4),
        "threads": program.threads or None,
        "busy_threads": program.busy.get(program_from_outside.busiest(program)),
    }
