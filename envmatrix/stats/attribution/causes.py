"""Causes of the changed parts of a step: the change in the number of events, times the cost of one on this machine.

And named reasons for a shorter or longer step. Each has a rule, and is reported only if the run's numbers satisfy it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.plan.environment import Environment
from envmatrix.stats.array_types import Floats
from envmatrix.stats.attribution.step_time_parts import Interval, Part, StepParts
from envmatrix.stats.step_account import FIRST_HALF
from envmatrix.stats.trial_text_counts import ArmFacts

#: The events that explain each part, with their labels; ``throttled_s`` is a time, summed over all threads. The time
#: for which the first half of the steps is slower than the second one may be in any part ('').
EVENTS = {
    "minor_faults": ("kernel", "page faults"),
    "major_faults": ("blocked", "page faults that read a disk"),
    "voluntary_switches": ("blocked", "sleeps and wake-ups"),
    "involuntary_switches": ("waiting", "times it lost its CPU to another thread"),
    "throttled_s": ("waiting", "held back by a CPU quota"),
    "memory_calls": ("kernel", "memory system calls"),
    "dtlb_misses": ("user", "data TLB misses"),
    "cache_misses": ("user", "cache misses"),
    FIRST_HALF: ("", "slower first half of the steps"),
}
#: The events' measured cost must be at least this share of a part's change.
_MOST = 0.5
#: Plausible cost of one page fault in seconds; outside this range the time has another cause.
_FAULT_S = (1e-7, 2e-5)
#: A part with a smaller share of the whole difference is not a reason for it.
_WORTH = 0.2
#: With fewer switches per step, threads do not sleep between parallel regions.
_SLEEPS = 1.0


@dataclass(frozen=True)
class Cause:
    """Events of one kind that change a part: their numbers per step, the cost of one (seconds), and in total.

    ``price_s`` is None if it was not measured; ``time`` is then None too. ``estimate_s``: the part's change per event,
    if both changes are significant. It is not a price, because it contains all other changes of the part.
    """

    event: str
    before: float
    after: float
    change: Interval
    price_s: float | None
    time: Interval | None
    estimate_s: float | None = None

    @property
    def part(self) -> str:
        """The part that it belongs to."""
        return EVENTS[self.event][0]

    @property
    def label(self) -> str:
        """The text for reports."""
        return EVENTS[self.event][1]


@dataclass(frozen=True)
class Explained:
    """The causes of one environment's parts, and the unexplained remainder of each part with a priced cause."""

    causes: tuple[Cause, ...]
    unexplained: Mapping[str, Interval]

    def cause(self, event: str) -> Cause | None:
        """Return the cause for one kind of event, None if it was not counted."""
        return next((cause for cause in self.causes if cause.event == event), None)


def explained(environments: Sequence[StepParts]) -> dict[str, Explained]:
    """Return, by arm, the causes of the parts of environments that are judged ``together``.

    The intervals of all counts are simultaneous, and so are those of all costs and remainders.
    """
    if not environments:
        return {}
    together = environments[0].together
    counted = [event for event in EVENTS if np.isfinite(together.differences[event]).any()]
    counts = {event: together.intervals(together.differences[event], len(counted)) for event in counted}
    prices = {event: price for event, price in together.prices.items() if event in counted and np.isfinite(price).any()}
    held = max(1, 2 * len(prices))
    times: dict[str, list[Interval]] = {}
    remainders: dict[str, Floats] = {}
    for event in (event for event in counted if event in prices):
        part, cost = EVENTS[event][0], together.differences[event] * prices[event]
        times[event] = together.intervals(cost, held)
        remainders[part] = remainders.get(part, together.differences[part]) - cost
    unexplained = {
        part: together.intervals(remainders[part], held) for part in together.counted_parts if part in remainders
    }

    def cause(event: str, parts: StepParts) -> Cause:
        change, price = counts[event][parts.row], float(np.nanmedian(prices[event])) if event in prices else None
        time = times[event][parts.row] if event in times else None
        return Cause(event, *parts.means(event), change, price, time, _estimate(event, parts, change))

    return {
        parts.arm.name: Explained(
            tuple(cause(event, parts) for event in counted),
            {part: intervals[parts.row] for part, intervals in unexplained.items()},
        )
        for parts in environments
    }


def _estimate(event: str, parts: StepParts, change: Interval) -> float | None:
    changed_part = parts.part(EVENTS[event][0])
    if not changed_part or not changed_part.change.is_sure or not change.is_sure:
        return None
    return changed_part.change.mean * parts.means("cpus")[1] / change.mean


@dataclass(frozen=True)
class Case:
    """The input of a rule: one environment and its reference."""

    parts: StepParts
    explained: Explained
    reference: ArmFacts
    environment: ArmFacts

    def change_if_reason(self, part: str) -> Interval | None:
        """Return the change of a part if it is significant and a large share of the whole difference."""
        step_part = self.parts.part(part)
        return step_part.change if step_part and is_reason(step_part, self.parts.whole) else None

    def event_and_part_change_alike(self, event: str, part: str) -> bool:
        """Return whether events and part significantly change in the same direction."""
        cause, change = self.explained.cause(event), self.change_if_reason(part)
        return bool(cause and change and cause.change.is_sure and cause.change.mean * change.mean > 0)

    def seen(self, path: str) -> tuple[str, str]:
        """Return the values that both sides read at run time, '' if there are none, or several in different trials."""
        both: tuple[Mapping[str, int], ...] = tuple(
            facts.evidence.get(path) or {} for facts in (self.reference, self.environment)
        )
        before, after = (next(iter(values)) if len(values) == 1 else "" for values in both)
        return before, after

    @property
    def slower_side_index(self) -> int:
        """The index of the side with the longer step: 0 for the reference, 1 for the environment."""
        return int(self.parts.whole.mean > 0)


@dataclass(frozen=True)
class Rule:
    """A reason: its name, condition and remedy, and the levels (factor, level) that change only this cause.

    ``less`` and ``more``: levels that remove and add the cause, in a reference with the level ``start`` of that factor
    ('': with any). ``factors``: every level of these changes only the cause. ``event`` is the event that they change.
    """

    name: str
    met: Callable[[Case], bool]
    remedy: str
    less: tuple[str, str] | None = None
    more: tuple[str, str] | None = None
    start: str = ""
    factors: tuple[str, ...] = ()
    event: str = ""

    def interventions(
        self, environment: Environment | None, reference: Environment | None, *, slower: bool
    ) -> tuple[tuple[str, str], ...]:
        """Return the levels that should change the reference as this cause changes an environment, best first."""
        if reference is None:
            return ()
        own, standard = levels_changed(environment, reference), self.more if slower else self.less
        changed_factors = [(name, own[name]) for name in self.factors if name in own]
        if standard and self.start in ("", reference.levels.get(standard[0], self.start)):
            changed_factors.append(standard)
        return tuple(changed_factors)


@dataclass(frozen=True)
class Finding:
    """A rule that applies. ``by``: an environment that changes only this cause (None: no such).

    ``confirmed``: whether it has at least half of the effect (None: not known, for too few blocks).
    """

    rule: Rule
    confirmed: bool | None = None
    by: StepParts | None = None


def is_reason(part: Part, whole: Interval) -> bool:
    """Return whether a part changes significantly in the direction of the whole, and is a large share of it."""
    return part.change.is_sure and part.change.mean / whole.mean >= _WORTH


def _memory_returned(case: Case) -> bool:
    if not case.event_and_part_change_alike("minor_faults", "kernel"):
        return False
    cause, change = case.explained.cause("minor_faults"), case.change_if_reason("kernel")
    assert cause
    assert change
    if cause.time is not None:
        return cause.time.mean / change.mean >= _MOST
    return _FAULT_S[0] <= (cause.estimate_s or 0.0) <= _FAULT_S[1]


def _sleeping(case: Case) -> bool:
    cause = case.explained.cause("voluntary_switches")
    return bool(
        cause
        and case.event_and_part_change_alike("voluntary_switches", "blocked")
        and abs(cause.change.mean) >= _SLEEPS
    )


def _spinning(case: Case) -> bool:
    sleeps = case.seen("openmp.sleeps")[case.slower_side_index]
    return case.event_and_part_change_alike("involuntary_switches", "waiting") and sleeps == "false"


def _fewer_threads(case: Case) -> bool:
    before, after = case.seen("openmp.threads")
    if not (before.isdecimal() and after.isdecimal()):
        return False
    return int((before, after)[case.slower_side_index]) < int((before, after)[1 - case.slower_side_index])


def _other_compute_kernel(case: Case) -> bool:
    differs = [case.seen(path) for path in ("torch.cpu_capability", "onednn.isa", "onednn.implementation")]
    return case.change_if_reason("user") is not None and any(a and b and a != b for a, b in differs)


def _warming_up(case: Case) -> bool:
    cause, whole = case.explained.cause(FIRST_HALF), case.parts.whole
    return bool(cause and whole.is_sure and cause.change.is_sure and cause.change.mean / whole.mean >= _MOST)


def _idle_cpus(case: Case) -> bool:
    idle = not case.parts.together.thread and case.change_if_reason("blocked") is not None
    return idle and not _sleeping(case) and not _fewer_threads(case)


#: All rules, in the order of the report.
RULES = (
    Rule("memory is returned to Linux and faulted in again", _memory_returned,
         "try an allocator, or allocator settings, that keep freed memory",
         less=("malloc", "glibc-tuned"), start="glibc", event="minor_faults"),
    Rule("threads sleep between parallel regions", _sleeping,
         "OMP_WAIT_POLICY=active, a longer KMP_BLOCKTIME, or fewer threads",
         less=("wait", "active"), more=("wait", "passive"), factors=("wait",), event="voluntary_switches"),
    Rule("a CPU quota holds threads back", lambda case: case.event_and_part_change_alike("throttled_s", "waiting"),
         "a larger quota, or as many threads as it has CPUs", factors=("cpu-quota",), event="throttled_s"),
    Rule("threads spin while other programs need CPUs", _spinning,
         "fewer threads, or OMP_WAIT_POLICY=passive",
         less=("wait", "passive"), more=("wait", "active"), factors=("wait",), event="involuntary_switches"),
    Rule("fewer threads than CPUs", _fewer_threads,
         "OMP_NUM_THREADS, or no CPU list that leaves CPUs out", less=("threads", "logical"), factors=("threads",)),
    Rule("another compute kernel was chosen", _other_compute_kernel,
         "see `envmatrix evidence ENV` for the instruction sets", factors=("isa",)),
    Rule("first steps are slower (warm-up)", _warming_up,
         "time later steps: raise `warmup_steps`, or `warmup` of a program's metric"),
    Rule("CPUs idle", _idle_cpus, "see which operators use one thread: `profile_steps` in the workload"),
)  # fmt: skip


def findings(
    case: Case, arms: Mapping[str, tuple[StepParts, Environment | None]], reference: Environment | None
) -> tuple[Finding, ...]:
    """Return the rules that apply; ``arms`` are all with the same ``reference`` and engine."""
    return tuple(_checked(rule, case, arms, reference) for rule in RULES if rule.met(case))


def levels_changed(environment: Environment | None, reference: Environment | None) -> dict[str, str]:
    """Return the levels, by factor, that an environment has and its reference does not have."""
    if environment is None or reference is None:
        return {}
    return {name: level for name, level in environment.levels.items() if reference.levels.get(name) != level}


def _checked(
    rule: Rule, case: Case, arms: Mapping[str, tuple[StepParts, Environment | None]], reference: Environment | None
) -> Finding:
    """Check a rule against an environment of the run that changes only its cause, if there is one."""
    environment = arms.get(case.parts.arm.name, (case.parts, None))[1]
    wanted = rule.interventions(environment, reference, slower=bool(case.slower_side_index))
    for parts, other in arms.values():
        changed = tuple(levels_changed(other, reference).items())
        is_other = parts.arm.name != case.parts.arm.name
        if (
            is_other
            and len(changed) == 1
            and changed[0] in wanted
            and event_counts_change_alike(parts, case.parts, rule)
        ):
            return Finding(rule, reproduces_most_of_change(parts.whole, case.parts.whole), parts)
    return Finding(rule)


def event_counts_change_alike(one: StepParts, case: StepParts, rule: Rule) -> bool:
    """Return whether the intervention changed the number of events in the same direction, if they are counted."""
    if not rule.event:
        return True
    before, after = one.means(rule.event)
    first, last = case.means(rule.event)
    return (after - before) * (last - first) > 0


def reproduces_most_of_change(one: Interval, whole: Interval) -> bool | None:
    """Return whether the intervention's change is significant, and at least half of the environment's.

    None: neither that nor the opposite is significant.
    """
    ratios = sorted(end / whole.mean for end in (one.low, one.high) if end is not None)
    if len(ratios) < 2 or (ratios[0] <= 0 and ratios[1] >= _MOST):
        return None
    return ratios[0] > 0 and one.mean / whole.mean >= _MOST
