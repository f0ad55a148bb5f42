"""Names for why a step is shorter or longer. Each name has a rule, and is given only if the run's numbers meet it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envmatrix.plan.environment import Environment
from envmatrix.stats.arm_facts import ArmFacts
from envmatrix.stats.causes import Explained
from envmatrix.stats.step_parts import Interval, Part, StepParts

#: At least so much of a part must be what the events of a rule cost, if their price was measured.
_MOST = 0.5
#: What one page fault costs on any machine that is known, in seconds: outside of it the time has another cause.
_FAULT_S = (1e-7, 2e-5)
#: A part that is less of the whole difference is no reason for it.
_WORTH = 0.2
#: Fewer switches a step than this are not threads that sleep between parallel regions.
_SLEEPS = 1.0


@dataclass(frozen=True)
class Case:
    """All that a rule looks at: one environment next to its reference."""

    parts: StepParts
    explained: Explained
    reference: ArmFacts
    environment: ArmFacts

    def change(self, part: str) -> Interval | None:
        """Return the change of a part if it is sure, and a good part of the whole difference."""
        found = self.parts.part(part)
        return found.change if found and is_reason(found, self.parts.whole) else None

    def more(self, event: str, part: str) -> bool:
        """Whether there are surely more events where the part takes longer."""
        cause, change = self.explained.cause(event), self.change(part)
        return bool(cause and change and cause.change.is_sure and cause.change.mean * change.mean > 0)

    def seen(self, path: str) -> tuple[str, str]:
        """Return what both sides read at run time, '' if nothing, or not the same in every trial."""
        both: tuple[Mapping[str, int], ...] = tuple(
            facts.evidence.get(path) or {} for facts in (self.reference, self.environment)
        )
        before, after = (next(iter(values)) if len(values) == 1 else "" for values in both)
        return before, after

    @property
    def slower(self) -> int:
        """0: the reference has the longer step; 1: the environment."""
        return int(self.parts.whole.mean > 0)


@dataclass(frozen=True)
class Rule:
    """A name, when it is given, what to do, and the one level (factor, level) that changes this cause and no other.

    ``event`` is what that level changes.
    """

    name: str
    met: Callable[[Case], bool]
    remedy: str
    level: tuple[str, str] | None = None
    event: str = ""


@dataclass(frozen=True)
class Finding:
    """A rule that was met. ``confirmed`` says what an environment shows that changes only this cause (None: no such).

    ``by`` has the parts of that environment.
    """

    rule: Rule
    confirmed: bool | None = None
    by: StepParts | None = None


def is_reason(part: Part, whole: Interval) -> bool:
    """Whether a part surely changes in the direction of the whole, and is a good part of it."""
    return part.change.is_sure and part.change.mean / whole.mean >= _WORTH


def _memory_returned(case: Case) -> bool:
    if not case.more("minor_faults", "kernel"):
        return False
    cause, change = case.explained.cause("minor_faults"), case.change("kernel")
    assert cause
    assert change
    if cause.time is not None:
        return cause.time.mean / change.mean >= _MOST
    return _FAULT_S[0] <= (cause.estimate_s or 0.0) <= _FAULT_S[1]


def _sleeping(case: Case) -> bool:
    cause = case.explained.cause("voluntary_switches")
    return bool(cause and case.more("voluntary_switches", "blocked") and abs(cause.change.mean) >= _SLEEPS)


def _spinning(case: Case) -> bool:
    sleeps = case.seen("openmp.sleeps")[case.slower]
    return case.more("involuntary_switches", "waiting") and sleeps == "false"


def _held_back(case: Case) -> bool:
    return case.more("throttled_s", "waiting")


def _fewer_threads(case: Case) -> bool:
    before, after = case.seen("openmp.threads")
    if not (before.isdecimal() and after.isdecimal()):
        return False
    return int((before, after)[case.slower]) < int((before, after)[1 - case.slower])


def _other_kernel(case: Case) -> bool:
    differs = [case.seen(path) for path in ("torch.cpu_capability", "onednn.isa", "onednn.implementation")]
    return case.change("user") is not None and any(a and b and a != b for a, b in differs)


def _idle_cpus(case: Case) -> bool:
    idle = not case.parts.together.thread and case.change("blocked") is not None
    return idle and not _sleeping(case) and not _fewer_threads(case)


#: In the order in which they are told.
RULES = (
    Rule(
        "memory returned to the kernel and faulted in again", _memory_returned,
        "an allocator, or options of it, that keep memory", ("malloc", "glibc-tuned"),
        "minor_faults",
    ),
    Rule(
        "threads sleep between parallel regions", _sleeping,
        "OMP_WAIT_POLICY=active, a longer KMP_BLOCKTIME, or fewer threads", ("wait", "passive"),
        "voluntary_switches",
    ),
    Rule("a CPU quota holds threads back", _held_back, "a larger quota, or as many threads as it has CPUs"),
    Rule("threads spin beside other load", _spinning, "fewer threads, or OMP_WAIT_POLICY=passive", ("wait", "passive"),
         "involuntary_switches"),
    Rule("fewer threads than CPUs", _fewer_threads, "OMP_NUM_THREADS, or no CPU list that leaves CPUs out"),
    Rule("another kernel was chosen", _other_kernel, "see `envmatrix evidence ENV` for the instruction sets"),
    Rule("CPUs idle", _idle_cpus, "see which operators use one thread: `profile_steps` in the workload"),
)  # fmt: skip


def findings(
    case: Case, arms: Mapping[str, tuple[StepParts, Environment | None]], reference: Environment | None
) -> tuple[Finding, ...]:
    """Return the rules that are met; ``arms`` are all others with the same ``reference`` and engine."""
    return tuple(_checked(rule, case, arms, reference) for rule in RULES if rule.met(case))


def _checked(
    rule: Rule, case: Case, arms: Mapping[str, tuple[StepParts, Environment | None]], reference: Environment | None
) -> Finding:
    """Hold a finding against an environment that changes nothing but its cause, if the run has one."""
    for parts, environment in arms.values():
        if parts is case.parts or not environment or not reference or rule.level is None:
            continue
        differs = {(f, level) for f, level in environment.levels.items() if reference.levels.get(f) != level}
        if differs == {rule.level} and _same_events(parts, case.parts, rule):
            return Finding(rule, _brings_back(parts.whole, case.parts.whole), parts)
    return Finding(rule)


def _same_events(one: StepParts, case: StepParts, rule: Rule) -> bool:
    """Whether the intervention changed the rule's events the same way."""
    before, after = one.means(rule.event)
    first, last = case.means(rule.event)
    return (after - before) * (last - first) > 0


def _brings_back(one: Interval, whole: Interval) -> bool:
    """Whether the intervention surely changes the step, and at least by half of what the environment does."""
    return one.is_sure and one.mean / whole.mean >= _MOST
