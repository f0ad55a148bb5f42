"""Known effects: what the runs of an atlas say of environments that have not run here. They order, never estimate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envmatrix.results.atlas_entries import AtlasEntry, ProcessorFacts, StoredEffect
from envmatrix.stats.meta_analysis.atlas import LEFT_OUT, pool_effects

_Found = tuple[ProcessorFacts, StoredEffect]


@dataclass(frozen=True)
class Situation:
    """What is about to be measured: the baseline, its ``levels`` by factor, digests of the work, and the processor.

    ``processor`` is None if it is unknown before a run.
    """

    baseline: str
    levels: Mapping[str, str]
    works: frozenset[str]
    processor: ProcessorFacts | None


@dataclass(frozen=True)
class KnownEffect:
    """The effect of the ``levels`` (factor -> level) in which an environment differs from the baseline.

    ``ratio`` is that of the most similar runs. On ``agreeing`` of their ``machines`` it is ``verdict``: faster on most,
    or slower on all; '' otherwise. ``here``: these runs are of the same processor.
    """

    levels: Mapping[str, str]
    ratio: float
    verdict: Literal["faster", "slower", ""]
    agreeing: int
    machines: int
    here: bool = False

    @property
    def fastest_first_key(self) -> tuple[int, float]:
        """The key to sort by: faster ones first, the fastest before others, and slower ones last."""
        group = {"faster": -1, "": 0, "slower": 1}[self.verdict]
        return group, -self.ratio if group else 0.0


def known_effects(entries: Iterable[AtlasEntry], situation: Situation) -> list[KnownEffect]:
    """Return what is known of each change of the baseline's levels, from the most similar runs that decide anything.

    Similar are runs of the same work, then of other work; of these, runs of this processor, then of all machines.
    """
    by_levels: dict[tuple[tuple[str, str], ...], list[_Found]] = {}
    for entry in entries:
        for effect in entry.effects:
            if _is_comparable(effect, situation):
                levels = tuple(sorted((factor, after) for factor, (_, after) in effect.changes.items()))
                by_levels.setdefault(levels, []).append((entry.machine, effect))
    return [_known_effect(dict(levels), rows, situation) for levels, rows in sorted(by_levels.items())]


def _is_comparable(effect: StoredEffect, situation: Situation) -> bool:
    same_baseline = effect.reference.partition(":")[0] == situation.baseline and all(
        situation.levels.get(factor) == before for factor, (before, _) in effect.changes.items()
    )
    return bool(effect.changes) and same_baseline and LEFT_OUT.isdisjoint(effect.flags)


def _known_effect(levels: Mapping[str, str], found: Sequence[_Found], situation: Situation) -> KnownEffect:
    known = []
    for same_work, here in itertools.product((True, False), repeat=2):
        similar = [
            (machine, effect)
            for machine, effect in found
            if (effect.work in situation.works or not same_work) and (machine == situation.processor or not here)
        ]
        if similar:
            known.append(_summarise(levels, similar, here))
    return next((effect for effect in known if effect.verdict), known[0])


def _summarise(levels: Mapping[str, str], found: Sequence[_Found], here: bool) -> KnownEffect:
    row = pool_effects(found)
    ratio = row.general.ratio if row.general else row.machines[0].effect.ratio
    verdicts = [machine.effect.verdict for machine in row.machines]
    count, faster, slower = len(verdicts), verdicts.count("faster"), verdicts.count("slower")
    if ratio > 1.0 and 2 * faster > count:
        return KnownEffect(levels, ratio, "faster", faster, count, here)
    return KnownEffect(levels, ratio, "slower" if slower == count else "", slower, count, here)
