"""Verification of a trial: every program that did its work is compared with the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from envmatrix.evidence import checks
from envmatrix.evidence.checks import Claim
from envmatrix.evidence.dotted_paths import SHORT_PATHS, lookup
from envmatrix.evidence.evidence_models import Evidence, Program
from envmatrix.evidence.notices import UNSEEN_SHARE, shared_cpu_and_thread_count
from envmatrix.matrix.known_variables import (
    NOT_IN_EFFECT,
    PresenceTest,
    Reader,
    find_reader,
    probably_meant_name,
    unread_message,
)
from envmatrix.plan.environment import Environment
from envmatrix.system import bench_options

#: Parts of the evidence that a program without PyTorch and without threads lacks.
_TORCH_PARTS = ("openmp", "torch", "blas", "onednn", "collectives", "cuda", "parallel", "xla")
#: Evidence that only a Python has, so that helpers in other languages lack it.
_PYTHON_PATHS = ("system.python", "system.gil", "system.jit", "system.executable", "packages.")
#: Settings of an OpenMP runtime, which show nothing if it never had a thread.
_OPENMP_SETTINGS = tuple(
    f"openmp.{name}" for name in ("affinity", "blocktime", "places", "proc_bind", "sleeps", "spin_count", "wait_policy")
)
#: The CPUs allowed to a thread at the end show whether these settings had an effect.
_BINDING_SETTINGS = ("openmp.affinity", "openmp.proc_bind")
#: Evidence that may legitimately be missing: NCCL starts only with GPUs.
_NCCL_PATH = "parallel.nccl"
#: Variables that `bench command` applies itself before it starts a user's program (bench/requested_memory_policy.py).
_BENCH_VARIABLES = ("BENCH_HUGE_PAGES", "BENCH_INTERLEAVE")
_PYTHONS = ("python", "pypy", "libpython", "libpypy")
_THREADING_LIBRARIES = ("libgomp", "libiomp5", "libomp", "libtorch")


@dataclass(frozen=True)
class Verification:
    """``wrong``: contradictions between evidence and environment; ``unproven``: settings that were not verified."""

    wrong: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Program:
    """A program that did work in a trial. The ``leading`` one worked most, and must meet every check.

    ``kind`` is its name without parts that vary between trials. ``busy`` threads worked in its busiest process.
    ``spared``: it had no team of OpenMP threads, but another program of the trial had one.
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
        """Return whether a check applies to this program; True if that is unknown."""
        part = SHORT_PATHS.get(claim.path, claim.path).partition(".")[0]
        mapped = self.evidence.libraries
        if claim.path.startswith(_PYTHON_PATHS):
            return self.leading or self.may_be_python
        if self.leading or part not in _TORCH_PARTS or not mapped:
            return True
        is_single_threaded = self.evidence.source == "probe" or self.threads == 1
        return not is_single_threaded or any(
            PurePosixPath(path).name.startswith(_THREADING_LIBRARIES) for path in mapped
        )

    @property
    def may_be_python(self) -> bool:
        """Return whether it may be a Python, as nothing rules that out."""
        mapped = [self.path, *(self.evidence.libraries or ())]
        names = [PurePosixPath(path).name for path in mapped if path]
        return self.path is None or any(name.startswith(_PYTHONS) for name in names)


def verify_evidence(environment: Environment, evidence: Evidence) -> Verification:
    """Compare the evidence of one trial with the settings and checks of its environment."""
    wrong: list[str] = []
    unproven: list[str] = []
    programs = list(_working_programs(evidence))
    for program in programs:
        for is_unproven, text in _findings(environment, program):
            (unproven if is_unproven else wrong).append(f"{program.kind if is_unproven else program.name}{text}")
    wrong += contradicting_ranks(environment.claims, evidence)
    unproven += unread_variable_texts(environment.variables, [program.evidence for program in programs])
    unproven += [unread_message(name, probably_meant_name(name) or "") for name in environment.unread]
    promises = environment.claims or environment.preload or environment.variables
    if promises and (evidence.unseen_share or 0.0) > UNSEEN_SHARE:
        unproven.append(
            f"more than {UNSEEN_SHARE:.0%} of its CPU time was used by programs that ended before they could "
            "be inspected"
        )
    return Verification(tuple(wrong), tuple(dict.fromkeys(unproven)))


def _working_programs(evidence: Evidence) -> Iterator[_Program]:
    listed = evidence.programs or [Program()]
    have_teams = [_has_openmp_threads(program.evidence or evidence) for program in listed]
    for number, program in enumerate(listed):
        share = "" if program.share is None else f", {program.share:.0%} of the CPU time"
        name = f"{program.name} (process {program.pid}{share}) " if len(listed) > 1 else ""
        kind = f"{program.name} " if len({program.name for program in listed}) > 1 else ""
        program_evidence = program.evidence or evidence
        spared = any(have_teams) and not have_teams[number]
        yield _Program(
            name, kind, program_evidence, not number, program.threads, program.path, program.busy_threads, spared
        )


def _has_openmp_threads(evidence: Evidence) -> bool:
    """Return whether any OpenMP runtime had worker threads."""
    return bool(evidence.openmp and any((evidence.openmp.workers or {}).values()))


def _findings(environment: Environment, program: _Program) -> Iterator[tuple[bool, str]]:
    """Yield a message for every deviation, with whether it is only unverified."""
    evidence = program.evidence
    for _, file in environment.preload:
        mapped = _is_mapped(file, evidence.preloaded)
        if not mapped:
            reason = "its libraries could not be read" if mapped is None else "the process did not load it"
            yield mapped is None, f"{file} is preloaded, but {reason}"
    openmp_claims = [claim for claim in environment.claims if claim.path in ("openmp", *_OPENMP_SETTINGS)]
    if not program.spared and any(map(program.is_concerned, openmp_claims)):
        yield from _unused_runtime(evidence)
    if not program.spared and any(claim.path in _BINDING_SETTINGS for claim in environment.claims):
        yield from _unbound_threads(evidence)
    for setting in (evidence.malloc and evidence.malloc.refused) or ():
        if setting.partition(":")[0] in environment.variables:
            yield False, f"{setting} is not accepted by {evidence.malloc.library if evidence.malloc else None}"
    for claim in environment.claims:
        if program.is_concerned(claim):
            yield from _check_claim(claim, program)
    if evidence.source and evidence.variables is None and environment.variables:
        yield True, "its environment variables could not be read"
    else:
        yield from ((False, text) for text in contradicting_variables(environment.variables, evidence))
        yield from ((True, text) for text in _unreadable_variables(environment.variables, evidence))


def _unused_runtime(evidence: Evidence) -> Iterator[tuple[bool, str]]:
    """Yield a finding if the active OpenMP runtime has no threads, even if another one has."""
    openmp = evidence.openmp
    if openmp is None or not openmp.library:
        return
    workers = openmp.workers or {}
    if openmp.library not in workers:
        others_text = f", only threads of {', '.join(workers)}" if workers else ""
        text = f"no thread of {openmp.library} was seen{others_text}: not verified that it did the work"
        yield not workers, text


def _unbound_threads(evidence: Evidence) -> Iterator[tuple[bool, str]]:
    """Yield a finding if the first thread may still run on all its CPUs: binding may have failed without an error."""
    cpu = evidence.cpu
    if cpu and len(cpu.affinity_before or ()) > 1 and cpu.affinity_end == cpu.affinity_before:
        yield True, "its main thread may run on all of its CPUs: not verified that threads were bound"


def _check_claim(claim: Claim, program: _Program) -> Iterator[tuple[bool, str]]:
    """Compare a check with a program's final state, and a thread count also with earlier ones."""
    evidence = program.evidence
    is_thread_claim = SHORT_PATHS.get(claim.path, claim.path) == SHORT_PATHS["threads"]
    torch = evidence.torch if is_thread_claim else None
    other_counts = [number for number in (torch and torch.threads_set) or () if not claim.fits(number)]
    text = claim.contradiction(evidence)
    is_there = lookup(evidence, claim.path) is not None
    if other_counts and (not text or not is_there):
        yield False, f"claims {claim}, but it was set to {other_counts[0]} while it ran"
    elif is_thread_claim and not is_there and evidence.source == "outside":
        yield from _check_thread_count(claim, program)
    elif text:
        yield _is_unobservable(claim, evidence), text + _cause_text(claim, evidence)
    elif torch and (torch.threads or 0) > 1 and (crowd := shared_cpu_and_thread_count(evidence)):
        yield True, f"all its threads may run only on CPU {crowd[0]}: not verified that so many did the work"
    elif torch and not program.spared and _has_too_few_threads(evidence):
        yield True, f"fewer than {torch.threads} threads were seen: not verified that so many did the work"
    elif claim.path == "inductor.max_autotune" and evidence.inductor and not evidence.inductor.autotuned:
        yield True, "no kernels were timed against each other: not verified that autotuning chose any"


def _cause_text(claim: Claim, evidence: Evidence) -> str:
    """Return why a setting that was accepted has no effect, if known; otherwise ''."""
    isa = evidence.onednn.isa if evidence.onednn else None
    if claim.path == "onednn.rounds" and isa and isa.startswith("Intel") and "AMX" not in isa:
        return f": oneDNN rounds float32 only with AMX, and this CPU has {isa}"
    flags = evidence.cpu.flags if evidence.cpu else None
    if claim.path == "inductor.zentorch_calls" and flags is not None and "avx512f" not in flags:
        return ": zentorch works only on CPUs with AVX-512, and this one has none"
    return ""


def _check_thread_count(claim: Claim, program: _Program) -> Iterator[tuple[bool, str]]:
    """Compare a check of the thread count with the busy threads of a program seen only from outside."""
    workers = program.evidence.openmp.workers if program.evidence.openmp else None
    number = 1 + sum(workers.values()) if workers else 1 if program.busy == 1 else None
    if number is None:
        yield True, claim.contradiction(program.evidence)
    elif not claim.fits(number) and not (program.spared and number == 1):
        yield True, f"claims {claim}, but {f'{number} threads were' if number > 1 else 'one thread was'} seen at work"


def _has_too_few_threads(evidence: Evidence) -> bool:
    """Return whether fewer threads existed than the runtime would start: by its own limit, or for lack of work."""
    if not (evidence.torch and evidence.openmp and evidence.openmp.library):
        return False
    return (evidence.openmp.workers or {}).get(evidence.openmp.library, 0) < (evidence.torch.threads or 1) - 1


def _is_mapped(file: str, preloaded: Mapping[str, str | None] | None) -> bool | None:
    if preloaded is None:
        return None
    return any(mapped for path, mapped in preloaded.items() if PurePosixPath(path).name == PurePosixPath(file).name)


def _is_unobservable(claim: Claim, evidence: Evidence) -> bool:
    """Return whether evidence for a check is missing because the program could not be inspected for it."""
    if lookup(evidence, claim.path) is not None:
        return False
    if not evidence.source:
        return claim.path.startswith(_NCCL_PATH) and evidence.parallel is not None and evidence.parallel.nccl is None
    part = SHORT_PATHS.get(claim.path, claim.path).partition(".")[0]
    return evidence.source == "outside" or getattr(evidence, part, None) is None


def contradicting_variables(expected: Mapping[str, str | None], evidence: Evidence) -> list[str]:
    """Return a message for each variable that the process did not have as the environment sets it.

    For secrets, and in programs that did not know which variables matter, the record only shows that a variable was
    set. A program that ended before an inspection from outside contradicts nothing.
    """
    if evidence.source == "outside" and evidence.variables is None:
        return []
    observed = evidence.variables or {}
    bench_variables = _BENCH_VARIABLES if evidence.source else ()
    return [
        f"{name} should be {value!r}, but the process saw {observed.get(name)!r}"
        for name, value in expected.items()
        if name not in bench_variables and not _is_as_set(name, value, observed.get(name))
    ]


def _is_as_set(name: str, value: str | None, observed: str | None) -> bool:
    if value is None or observed is None:
        return value is observed
    hidden = bench_options.is_secret(observed) or bench_options.is_only_set(observed)
    return hidden or observed in (value, bench_options.recorded_variable(name, value))


def _unreadable_variables(expected: Mapping[str, str | None], evidence: Evidence) -> Iterator[str]:
    for name in expected:
        if bench_options.is_only_set((evidence.variables or {}).get(name)):
            yield f"{name} was set in the process, but its value was not recorded"


def contradicting_ranks(claims: Sequence[Claim], evidence: Evidence) -> list[str]:
    """Return contradictions in other ranks of a parallel trial, from evidence that differs from rank 0's."""
    contradictions = []
    ranks = evidence.parallel.ranks if evidence.parallel else None
    for part in ranks or ():
        differs = part.evidence_differs or Evidence()
        visible_claims = [claim for claim in claims if lookup(differs, claim.path) is not None]
        location = f" (node {part.node})" if part.node else ""
        contradictions += [
            f"rank {part.rank}{location} {text}" for text in checks.contradictions(visible_claims, differs)
        ]
    return contradictions


def unread_variable_texts(variables: Mapping[str, str | None], program_evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yield a message for each variable that none of a trial's programs reads, with the reason.

    If a program could not be inspected, the message is that the variable is not verified.
    """
    for name, value in variables.items():
        reader = None if value is None else find_reader(name)
        if reader is None:
            continue
        presences = [_find_in_program(reader, evidence) for evidence in program_evidence]
        loaded = [is_loaded for is_loaded, _ in presences]
        if True in loaded:
            continue
        if None not in loaded:
            yield f"{NOT_IN_EFFECT}{name} is read by {reader.name}, but {presences[0][1]}"
        elif any(evidence.source for evidence in program_evidence):
            yield f"not verified: {name} is read by {reader.name}, which was not seen in the process"


def _find_in_program(reader: Reader, evidence: Evidence) -> tuple[bool | None, str]:
    """Return whether a program contains a reader (None: unknown), and what the program has instead."""
    test, openmp, malloc = reader.presence_test, evidence.openmp, evidence.malloc
    if test is PresenceTest.OPENMP and openmp and openmp.library:
        runtimes = {f"/{name}" for name in (openmp.library, *(openmp.workers or ()))}
        is_used = any(runtime.startswith(reader.libraries) for runtime in runtimes)
        return is_used, f"this program uses {openmp.library}"
    if test is PresenceTest.MALLOC and malloc and malloc.library:
        is_serving = f"/{malloc.library}".startswith(tuple(part.rstrip(".-") for part in reader.libraries))
        may_be_inside = not is_serving and evidence.source == "outside"  # a program may contain its own allocator
        return None if may_be_inside else is_serving, f"{malloc.library} provides malloc"
    if test is PresenceTest.GPU and evidence.cuda and evidence.cuda.available is False:
        return False, "there is no GPU"
    if test is PresenceTest.INDUCTOR and evidence.torch and evidence.torch.version:
        return bool(evidence.inductor and evidence.inductor.graphs), "nothing was compiled"
    if evidence.libraries is None:
        return None, ""
    parts = tuple(part for part in reader.libraries if part != "/libtorch_cpu" or _may_be_in_torch(reader, evidence))
    instead = "nothing was compiled" if test is PresenceTest.INDUCTOR and evidence.torch else "no program loads it"
    return any(part in path for path in evidence.libraries for part in parts), instead


def _may_be_in_torch(reader: Reader, evidence: Evidence) -> bool:
    """Return whether this PyTorch may contain MKL or oneDNN; only its own report can rule that out."""
    reported = evidence.torch and {
        PresenceTest.MKL: evidence.torch.mkl,
        PresenceTest.ONEDNN: evidence.torch.onednn,
    }.get(reader.presence_test)
    return reported is not False
