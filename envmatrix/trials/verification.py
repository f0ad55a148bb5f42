"""Whether a trial was what its environment promises: held against every program that did its work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from envmatrix.evidence import checks
from envmatrix.evidence.checks import Claim
from envmatrix.evidence.evidence import Evidence, Program
from envmatrix.evidence.notices import UNSEEN, crowded
from envmatrix.evidence.paths import SHORT, lookup
from envmatrix.matrix.variables import near, unread
from envmatrix.plan.environment import Environment
from envmatrix.system import bench_options
from envmatrix.trials.effect import without_reader

#: Parts of the evidence that a program without PyTorch and without threads has nothing for.
_OF_TORCH = ("openmp", "torch", "blas", "onednn", "collectives", "cuda", "parallel", "xla")
#: What only a Python has, so that helpers in other languages have nothing to show of it.
_OF_PYTHON = ("system.python", "system.gil", "system.jit", "system.executable", "packages.")
#: Which runtime's settings these are says nothing where no thread of it ever ran.
_OF_TEAMS = tuple(f"openmp.{name}" for name in
                  ("affinity", "blocktime", "places", "proc_bind", "sleeps", "spin_count", "wait_policy"))  # fmt: skip
#: What a thread may run on afterwards shows whether these had an effect.
_OF_PLACES = ("openmp.affinity", "openmp.proc_bind")
#: Evidence that is not there where there was nothing to see: NCCL starts with GPUs alone.
_SEEN_IN_USE = "parallel.nccl"
#: What `bench command` heeds itself before it starts a program of the user's own (bench/memory.py).
_OURS = ("BENCH_HUGE_PAGES", "BENCH_INTERLEAVE")
_PYTHONS = ("python", "pypy", "libpython", "libpypy")
_THREADING = ("libgomp", "libiomp5", "libomp", "libtorch")


@dataclass(frozen=True)
class Proof:
    """``wrong``: how the evidence contradicts the environment; ``unproven``: what nothing was seen of."""

    wrong: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Program:
    """One program that worked. The ``leading`` one worked most, and must bear every claim out itself.

    ``kind`` is its name without what differs from trial to trial. ``busy`` threads worked in its busiest process.
    ``spared``: it had no work for a team, and another program of the trial had.
    """

    name: str
    kind: str
    evidence: Evidence
    leading: bool
    threads: int | None = None
    path: str | None = None
    busy: int | None = None
    spared: bool = False

    def is_concerned(self, claim: Claim) -> bool:
        """Whether a claim's subject is anything that this program has; what it has cannot always be told."""
        part = SHORT.get(claim.path, claim.path).partition(".")[0]
        mapped = self.evidence.libraries
        if claim.path.startswith(_OF_PYTHON):
            return self.leading or self.may_be_python
        if self.leading or part not in _OF_TORCH or not mapped:
            return True
        alone = self.evidence.source == "probe" or self.threads == 1
        return not alone or any(PurePosixPath(path).name.startswith(_THREADING) for path in mapped)

    @property
    def may_be_python(self) -> bool:
        """Whether nothing shows that it is no Python."""
        mapped = [self.path, *(self.evidence.libraries or ())]
        names = [PurePosixPath(path).name for path in mapped if path]
        return self.path is None or any(name.startswith(_PYTHONS) for name in names)


def prove(environment: Environment, evidence: Evidence) -> Proof:
    """Hold the evidence of one trial against what its environment sets and claims."""
    wrong: list[str] = []
    unproven: list[str] = []
    programs = list(_programs(evidence))
    for program in programs:
        for found, text in _findings(environment, program):
            (unproven if found else wrong).append(f"{program.kind if found else program.name}{text}")
    wrong += contradicting_ranks(environment.claims, evidence)
    unproven += without_reader(environment.variables, [program.evidence for program in programs])
    unproven += [unread(name, near(name) or "") for name in environment.unread]
    promises = environment.claims or environment.preload or environment.variables
    if promises and (evidence.unseen_share or 0.0) > UNSEEN:
        unproven.append(f"more than {UNSEEN:.0%} of its CPU time was used by programs too short to be looked at")
    return Proof(tuple(wrong), tuple(dict.fromkeys(unproven)))


def _programs(evidence: Evidence) -> Iterator[_Program]:
    listed = evidence.programs or [Program()]
    led = [_has_team(program.evidence or evidence) for program in listed]
    for number, program in enumerate(listed):
        share = "" if program.share is None else f", {program.share:.0%} of the CPU time"
        name = f"{program.name} (process {program.pid}{share}) " if len(listed) > 1 else ""
        kind = f"{program.name} " if len({one.name for one in listed}) > 1 else ""
        seen = program.evidence or evidence
        spared = any(led) and not led[number]
        yield _Program(name, kind, seen, not number, program.threads, program.path, program.busy_threads, spared)


def _has_team(seen: Evidence) -> bool:
    """Whether threads of any OpenMP runtime were there."""
    return bool(seen.openmp and any((seen.openmp.workers or {}).values()))


def _findings(environment: Environment, program: _Program) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is only unproven, sentence) of all that does not stand as it should."""
    seen = program.evidence
    for _, file in environment.preload:
        mapped = _is_mapped(file, seen.preloaded)
        if not mapped:
            yield mapped is None, f"{file} is preloaded, but " + ("its libraries could not be read" if mapped is None
                                                                 else "it is not mapped in it")  # fmt: skip
    teams = [claim for claim in environment.claims if claim.path in ("openmp", *_OF_TEAMS)]
    if not program.spared and any(map(program.is_concerned, teams)):
        yield from _unused(seen)
    if not program.spared and any(claim.path in _OF_PLACES for claim in environment.claims):
        yield from _unbound(seen)
    for setting in seen.malloc.refused or () if seen.malloc else ():
        if setting.partition(":")[0] in environment.variables:
            yield False, f"{setting} is not taken by {seen.malloc.library if seen.malloc else None}"
    for claim in environment.claims:
        if program.is_concerned(claim):
            yield from _held(claim, program)
    if seen.source and seen.variables is None and environment.variables:
        yield True, "its environment variables could not be read"
    else:
        yield from ((False, text) for text in contradicting_variables(environment.variables, seen))
        yield from ((True, text) for text in _untold_variables(environment.variables, seen))


def _unused(seen: Evidence) -> Iterator[tuple[bool, str]]:
    """Say that the runtime which would serve was not used: none of its threads is there, or those of another one."""
    found = seen.openmp
    if found is None or not found.library:
        return
    workers = found.workers or {}
    if found.library not in workers:
        others = f", but threads of {', '.join(workers)}" if workers else ""
        yield not workers, f"no thread of {found.library} was there{others}: nothing shows that its team did the work"


def _unbound(seen: Evidence) -> Iterator[tuple[bool, str]]:
    """Say that the thread which leads may run wherever it might before: a runtime may be told to bind, and fail to."""
    found = seen.cpu
    if found and len(found.affinity_before or ()) > 1 and found.affinity_end == found.affinity_before:
        yield True, "its first thread may run on every CPU that it has: nothing shows that threads were bound"


def _held(claim: Claim, program: _Program) -> Iterator[tuple[bool, str]]:
    """Hold a claim against what a program was in the end, and a number of threads against what it was on the way."""
    seen = program.evidence
    of_threads = SHORT.get(claim.path, claim.path) == SHORT["threads"]
    torch = seen.torch if of_threads else None
    others = [number for number in (torch and torch.threads_set) or () if not claim.fits(number)]
    text = claim.contradiction(seen)
    is_there = lookup(seen, claim.path) is not None
    if others and (not text or not is_there):
        yield False, f"claims {claim}, but it was set to {others[0]} while it ran"
    elif of_threads and not is_there and seen.source == "outside":
        yield from _held_by_team(claim, program)
    elif text:
        yield _could_not_be_seen(claim, seen), text + _cause(claim, seen)
    elif torch and (torch.threads or 0) > 1 and (crowd := crowded(seen)):
        yield True, f"all its threads may run on CPU {crowd[0]} alone: nothing shows that so many did the work"
    elif torch and not program.spared and _lacks_a_team(seen):
        yield True, f"no team of {torch.threads} threads was there: nothing shows that so many did the work"
    elif claim.path == "inductor.max_autotune" and seen.inductor and not seen.inductor.autotuned:
        yield True, "no kernels were tried against each other: nothing shows that autotuning chose any"


def _cause(claim: Claim, seen: Evidence) -> str:
    """Say why a setting that was taken has no effect, if that is known; else ''."""
    isa = seen.onednn.isa if seen.onednn else None
    if claim.path == "onednn.rounds" and isa and isa.startswith("Intel") and "AMX" not in isa:
        return f": oneDNN rounds float32 with AMX alone, and has {isa} here"
    return ""


def _held_by_team(claim: Claim, program: _Program) -> Iterator[tuple[bool, str]]:
    """Hold a number of threads against those that were seen at work in a program that could not be asked."""
    workers = program.evidence.openmp.workers if program.evidence.openmp else None
    number = 1 + sum(workers.values()) if workers else 1 if program.busy == 1 else None
    if number is None:
        yield True, claim.contradiction(program.evidence)
    elif not claim.fits(number) and not (program.spared and number == 1):
        yield True, f"claims {claim}, but {f'{number} threads were' if number > 1 else 'one thread was'} seen at work"


def _lacks_a_team(seen: Evidence) -> bool:
    """Whether fewer threads were there than a runtime would start: a limit of its own, or nothing to do."""
    if not (seen.torch and seen.openmp and seen.openmp.library):
        return False
    return (seen.openmp.workers or {}).get(seen.openmp.library, 0) < (seen.torch.threads or 1) - 1


def _is_mapped(file: str, preloaded: Mapping[str, str | None] | None) -> bool | None:
    if preloaded is None:
        return None
    return any(mapped for path, mapped in preloaded.items() if PurePosixPath(path).name == PurePosixPath(file).name)


def _could_not_be_seen(claim: Claim, seen: Evidence) -> bool:
    """Whether it is no fault of an own program that a claim's evidence is not there: it could not be asked for it."""
    if lookup(seen, claim.path) is not None:
        return False
    if not seen.source:
        return claim.path.startswith(_SEEN_IN_USE) and seen.parallel is not None and seen.parallel.nccl is None
    part = SHORT.get(claim.path, claim.path).partition(".")[0]
    return seen.source == "outside" or getattr(seen, part, None) is None


def contradicting_variables(wanted: Mapping[str, str | None], evidence: Evidence) -> list[str]:
    """Return which variables were not in the process as the environment sets them.

    Of one whose name looks like a secret's the record says only that it was there, as it does of any in a program that
    was not told which matter. A program that ended before anybody could look at it from outside contradicts nothing.
    """
    if evidence.source == "outside" and evidence.variables is None:
        return []
    seen = evidence.variables or {}
    ours = _OURS if evidence.source else ()
    return [
        f"{name} should be {value!r}, but the process saw {seen.get(name)!r}"
        for name, value in wanted.items()
        if name not in ours and not _is_as_set(name, value, seen.get(name))
    ]


def _is_as_set(name: str, value: str | None, said: str | None) -> bool:
    if value is None or said is None:
        return value is said
    hidden = bench_options.is_secret(said) or bench_options.is_only_set(said)
    return hidden or said in (value, bench_options.shown_variable(name, value))


def _untold_variables(wanted: Mapping[str, str | None], evidence: Evidence) -> Iterator[str]:
    for name in wanted:
        if bench_options.is_only_set((evidence.variables or {}).get(name)):
            yield f"{name} was set in it, and to what was not written"


def contradicting_ranks(promised: Sequence[Claim], evidence: Evidence) -> list[str]:
    """Return what the other ranks of a parallel trial contradict, by what of their evidence is not as rank 0's."""
    wrong = []
    ranks = evidence.parallel.ranks if evidence.parallel else None
    for part in ranks or ():
        differs = part.evidence_differs or Evidence()
        seen = [claim for claim in promised if lookup(differs, claim.path) is not None]
        where = f" (node {part.node})" if part.node else ""
        wrong += [f"rank {part.rank}{where} {text}" for text in checks.contradictions(seen, differs)]
    return wrong
