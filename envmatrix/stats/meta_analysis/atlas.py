"""What an atlas stores of a run, and what its runs on many machines show together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, arm_name
from envmatrix.results import Run
from envmatrix.results.atlas_entries import AtlasEntry, ProcessorFacts, StoredEffect, StoredSteady, digest
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import CONFIDENCE, DISQUALIFYING_FLAGS, Effect, Flag, verdict_of
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.meta_analysis.random_effects import RandomEffects, combine_runs, random_effects
from envmatrix.stats.observed_host import observed_host
from envmatrix.stats.pairing import ratio_from_log
from envmatrix.stats.steady_state.effect import SteadyEffect
from envmatrix.system import shared_bench_modules
from envmatrix.system.host import Host, this_host

#: Effects with these flags do not measure the environment alone, whatever their verdict.
LEFT_OUT = DISQUALIFYING_FLAGS | {Flag.CONTENDED, Flag.REFERENCE_FAILS_MORE}
#: Effects that share these measure the same change of the same work.
_SHARED = {"work", "engine", "metric", "reference", "changes"}


@dataclass(frozen=True)
class MachineEffect:
    """The effect of an environment on one machine, over all of its ``runs``."""

    machine: ProcessorFacts
    runs: int
    effect: StoredEffect


@dataclass(frozen=True)
class AtlasRow:
    """An environment on all machines; ``first`` is an effect of it, ``general`` is None below two machines.

    ``left_out`` counts the effects that do not measure the environment alone, such as those of other work. ``later`` is
    the same for the later steps, from the runs that have them.
    """

    first: StoredEffect
    machines: tuple[MachineEffect, ...]
    left_out: int
    general: RandomEffects | None
    later: AtlasRow | None = None

    def find(self, machine: ProcessorFacts) -> StoredEffect | None:
        """Return the effect on a machine."""
        return next((entry.effect for entry in self.machines if entry.machine == machine), None)


@dataclass(frozen=True)
class Atlas:
    """All rows of an atlas, the files that cannot be used, and a line about the signature of each other file."""

    runs: int
    machines: int
    rows: tuple[AtlasRow, ...]
    unreadable: tuple[str, ...] = ()
    signatures: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {"schema": 1, **TypeAdapter(Atlas).dump_python(self, mode="json")}


def atlas_entry(
    run: Run, measured: Measurements, analysis: Analysis, steady: Mapping[str, SteadyEffect] | None = None
) -> AtlasEntry:
    """Return the entry of a run. Raises InputError if it has no interval, two sides or several processors."""
    if run.sides:
        remedy = "add runs whose environments differ in named levels"
        raise InputError(f"{run.name} compares two versions of one environment (--rerun)", remedy=remedy)
    arms = {arm.name: arm for arm in run.plan.arms}
    effects = [
        _stored_effect(run, measured, effect, arms[effect.reference], (steady or {}).get(effect.arm))
        for effect in analysis.primary_effects()
        if not effect.is_control and effect.low and effect.high and effect.error is not None and effect.units > 1
    ]
    if not effects:
        remedy = f"continue the run: envmatrix resume {run.name}"
        raise InputError(f"{run.name} has no effect with an interval yet", remedy=remedy)
    begin = json.dumps([run.created, run.design.seed, run.bench_digest, measured.begins.tolist()[:1]])
    return AtlasEntry(run=digest(begin), machine=_machine(run, measured), effects=tuple(effects))


def _machine(run: Run, measured: Measurements) -> ProcessorFacts:
    host = observed_host(run.host, measured)
    if len(measured.machine.get("cpu.model", ())) > 1:
        remedy = "measure one run per kind: name its nodes with --nodelist or --hosts"
        raise InputError(f"{run.name} ran on several kinds of processors", remedy=remedy)
    return _processor_facts(host, json.loads(next(iter(measured.machine.get("cpu.flags", ())), "[]")))


def this_processor() -> ProcessorFacts:
    """Return the facts of this machine, as a run here records them."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return _processor_facts(this_host(), shared_bench_modules.processor.instruction_sets(cpuinfo) or ())


def _processor_facts(host: Host, flags: Iterable[str]) -> ProcessorFacts:
    return ProcessorFacts(
        model=host.cpu_model or "unknown processor", architecture=host.machine or "unknown", cpus=len(host.cpus),
        cores=len(host.physical_cpus), numa_nodes=host.numa_nodes, virtual=host.hypervisor,
        flags=tuple(sorted(flags)),
    )  # fmt: skip


def work_digest(workload: Workload, files: Mapping[str, str]) -> str:
    """Return a digest of a workload, as run.json has it, and of the ``files`` of its program (path -> sha256)."""
    body = workload.model_dump_json(exclude_defaults=True, exclude={"name", "description"})
    return digest(body + json.dumps(dict(files), sort_keys=True))


def _stored_effect(
    run: Run, measured: Measurements, effect: Effect, reference: Arm, steady: SteadyEffect | None
) -> StoredEffect:
    runs = next(arm.runs for arm in run.plan.arms if arm.name == effect.arm)
    before, after = run.environments[reference.runs].levels, run.environments[runs].levels
    own = {
        "work": work_digest(run.workloads[effect.workload], run.programs.get(effect.workload, {})),
        "reference": arm_name(reference.runs, reference.workload, reference.engine),
        "changes": {key: (before.get(key, ""), after[key]) for key in sorted(after) if before.get(key) != after[key]},
        "torch": ", ".join(sorted(measured.facts[effect.arm].evidence.get("torch.version", ()))),
        "variance": (effect.error or 0.0) ** 2,
        "steady": steady and _stored_steady(steady, effect),
    }
    return StoredEffect.model_validate({**vars(effect), **own})


def _stored_steady(steady: SteadyEffect, effect: Effect) -> StoredSteady:
    """Return what is stored; its interval is about as many standard errors wide as that of the trials."""
    width = math.log(effect.high / effect.low) if effect.low and effect.high else 0.0
    error = (effect.error or 0.0) * math.log(steady.high / steady.low) / max(width, 1e-12)
    return StoredSteady.model_validate({**vars(steady), "variance": error**2, "units": steady.groups})


def read_atlas(entries: Sequence[AtlasEntry]) -> Atlas:
    """Return what the entries of an atlas show together, by workload, engine and environment."""
    effects: dict[str, list[tuple[ProcessorFacts, StoredEffect]]] = {}
    for entry in entries:
        for effect in entry.effects:
            effects.setdefault(effect.model_dump_json(include=_SHARED), []).append((entry.machine, effect))
    rows = sorted(map(pool_effects, effects.values()), key=lambda row: (*table_identity(row), row.first.environment))
    return Atlas(len(entries), len({entry.machine for entry in entries}), tuple(rows))


def table_identity(row: AtlasRow) -> tuple[str, ...]:
    """Return what the rows of one table share."""
    first = row.first
    return first.workload, first.work, first.engine, first.metric, first.reference


def pool_effects(effects: Sequence[tuple[ProcessorFacts, StoredEffect]]) -> AtlasRow:
    """Return what effects of one environment show together."""
    later = [(machine, _as_steady(effect)) for machine, effect in effects if effect.steady]
    return replace(_pool(effects), later=_pool(later) if later else None)


def _pool(effects: Sequence[tuple[ProcessorFacts, StoredEffect]]) -> AtlasRow:
    by_machine: dict[ProcessorFacts, list[StoredEffect]] = {}
    for machine, effect in effects:
        if LEFT_OUT.isdisjoint(effect.flags):
            by_machine.setdefault(machine, []).append(effect)
    machines = tuple(MachineEffect(key, len(stored), _combined(stored)) for key, stored in by_machine.items())
    logs_and_variances = [(math.log(one.effect.ratio), one.effect.variance) for one in machines]
    general = random_effects(*zip(*logs_and_variances, strict=True)) if len(logs_and_variances) > 1 else None
    return AtlasRow(effects[0][1], machines, len(effects) - sum(map(len, by_machine.values())), general)


def _as_steady(effect: StoredEffect) -> StoredEffect:
    """Return the effect in later steps in place of that of the trials."""
    assert effect.steady is not None
    values = {name: getattr(effect.steady, name) for name in ("ratio", "low", "high", "variance", "units", "verdict")}
    return effect.model_copy(update={**values, "blocks": effect.steady.units, "withheld": ""})


def _combined(effects: Sequence[StoredEffect]) -> StoredEffect:
    """Return the effect of all runs on one machine; that of a single run is as reported."""
    if len(effects) == 1:
        return effects[0]
    mean, variance = combine_runs(
        [math.log(effect.ratio) for effect in effects], [effect.variance for effect in effects]
    )
    units = 1 + sum(effect.units - 1 for effect in effects)
    reach = student_quantile(units, 0.5 + CONFIDENCE / 2.0) * math.sqrt(variance)
    low, high = ratio_from_log(mean - reach), ratio_from_log(mean + reach)
    combined = {
        "ratio": ratio_from_log(mean), "low": low, "high": high, "variance": variance, "units": units,
        "blocks": sum(effect.blocks for effect in effects),
        "torch": ", ".join(sorted({effect.torch for effect in effects})),
        "verdict": verdict_of(low, high, 0.0), "withheld": "",
    }  # fmt: skip
    return effects[0].model_copy(update=combined)


@dataclass(frozen=True)
class Prediction:
    """The speed-up ``ratio`` of an environment on a machine, and its interval ``low`` to ``high``.

    If it was ``measured`` on this machine, that is its own effect. Otherwise it is the average of ``machines`` with the
    prediction interval for another one, None below three. ``covered``: as in ``RandomEffects``. ``later``: these are
    figures of later steps, which count more for a training than those of trials; '' or the seconds that they are of.
    """

    environment: str
    workload: str
    engine: str
    metric: str
    reference: str
    changes: Mapping[str, tuple[str, str]]
    measured: bool
    ratio: float
    low: float | None
    high: float | None
    machines: int
    covered: int | None
    later: str = ""

    @property
    def is_faster(self) -> bool:
        """Return whether the whole interval is above 1."""
        return self.low is not None and self.low > 1.0

    @property
    def rank(self) -> tuple[float, ...]:
        """The key to sort by: intervals with the highest lower end first, then the environments without one."""
        return (0.0, -self.low) if self.low is not None else (1.0, -self.machines, -self.ratio)


@dataclass(frozen=True)
class Advice:
    """The predictions for a ``machine``, the best first, and the command that measures the best ones there.

    ``known``: the atlas has runs of this machine. ``unreadable`` tells of the files that cannot be used.
    """

    machine: ProcessorFacts
    known: bool
    predictions: tuple[Prediction, ...]
    next: str
    unreadable: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {"schema": 1, **TypeAdapter(Advice).dump_python(self, mode="json")}


def predict(atlas: Atlas, machine: ProcessorFacts) -> tuple[Prediction, ...]:
    """Return what an atlas predicts of each of its environments on a machine, the best first."""
    return tuple(sorted((_predict(row, machine) for row in atlas.rows if row.machines), key=lambda one: one.rank))


def _predict(row: AtlasRow, machine: ProcessorFacts) -> Prediction:
    first, own, later = row.first, row.find(machine), row.later
    if later and (later.find(machine) or (not own and later.general and later.general.prediction)):
        return replace(_predict(later, machine), later=later.first.steady.time_range_text if later.first.steady else "")
    covered = row.general.covered if row.general else None
    low, high = (row.general.prediction if row.general else None) or (None, None)
    ratio = row.general.ratio if row.general else row.machines[0].effect.ratio
    if own:
        ratio, low, high = own.ratio, own.low, own.high
    return Prediction(
        environment=first.environment, workload=first.workload, engine=first.engine, metric=first.metric,
        reference=first.reference.partition(":")[0], changes=first.changes, measured=own is not None, ratio=ratio,
        low=low, high=high, machines=len(row.machines), covered=covered,
    )  # fmt: skip
