"""Differences between a packed run and its reproduction, and which effects were reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from envmatrix.errors import ExitCode, most_important_code
from envmatrix.plan.environment import Environment
from envmatrix.results import Run, RunFolder
from envmatrix.stats.comparisons.replication import Replication, compare_effects
from envmatrix.stats.comparisons.result import flag_cautions, unchecked_work_cautions
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.inference.standard_errors import slow_phases_note
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.observed_host import observed_host
from envmatrix.system.host import Host

_HOST_FIELDS = ("cpu_model", "cpus", "numa_nodes", "memory_bytes", "kernel", "distribution", "hypervisor")


@dataclass(frozen=True)
class Difference:
    """One difference: ``then`` is the value in the pack, ``now`` the value here (None: absent)."""

    where: str
    what: str
    then: object
    now: object

    def __str__(self) -> str:
        return f"{self.where}: {self.what} was {_value_text(self.then)}, is {_value_text(self.now)}"


@dataclass(frozen=True)
class Reproduction:
    """The result of ``envmatrix reproduce``."""

    first: Run
    second: Run
    differences: tuple[Difference, ...]
    effects: tuple[Replication, ...]
    tolerance: float
    cautions: tuple[str, ...] = ()

    def gate(self, *, fail_undecided: bool = False) -> ExitCode:
        """Return the exit code: 7 unequal work, 3 an effect not reproduced, 6 undecided (with ``fail_undecided``)."""
        answers = {item.answer for item in self.effects}
        has_other_work = any(item.second and Flag.UNEQUAL_WORK in item.second.flags for item in self.effects)
        return most_important_code(
            ExitCode.OTHER_WORK if has_other_work else ExitCode.FINE,
            ExitCode.SOME_FAILED if "not reproduced" in answers else ExitCode.FINE,
            ExitCode.UNDECIDED if fail_undecided and "undecided" in answers else ExitCode.FINE,
        )

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of ``envmatrix reproduce``, as far as it depends on the effects."""
        return self.gate()

    def to_json(self, exit_code: ExitCode | None = None) -> dict[str, object]:
        """Return the JSON document; ``exit_code`` is the command's (None: the one that the effects give)."""
        return {
            "schema": 1,
            "exit_code": int(self.exit_code if exit_code is None else exit_code),
            "packed_run": self.first.name,
            "run": self.second.name,
            "tolerance": self.tolerance,
            "differences": [asdict(item) for item in self.differences],
            "effects": [_effect_json(item) for item in self.effects],
            "cautions": list(self.cautions),
        }


def _value_text(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _effect_json(item: Replication) -> dict[str, object]:
    def part(effect: Effect | None) -> dict[str, object] | None:
        keys = ("ratio", "low", "high", "verdict", "blocks", "flags")
        return None if effect is None else {key: getattr(effect, key) for key in keys}

    return {
        "arm": item.arm,
        "environment": item.environment,
        "answer": item.answer,
        "same_direction": item.same_direction,
        "then": part(item.first),
        "now": part(item.second),
        "difference": {"low": item.low, "high": item.high},
        "unsure": item.unsure,
    }


def _mapping_differences(
    location: str, packed_values: Mapping[str, object], new_values: Mapping[str, object]
) -> Iterator[Difference]:
    for key in dict.fromkeys((*packed_values, *new_values)):
        values = [list(v) if isinstance(v, tuple) else v for v in (packed_values.get(key), new_values.get(key))]
        if values[0] != values[1]:
            yield Difference(location, key, *values)


def image_differences(
    packed_run: Run, new_run: Run, packed: Mapping[str, Mapping[str, str]], built: Mapping[str, str]
) -> list[Difference]:
    """List the images that differ. ``packed`` and ``built`` have the sha256 of images that are single files."""
    differences: list[Difference] = []
    for key in dict.fromkeys((*packed_run.images, *new_run.images)):
        differences += _mapping_differences(f"image {key}", packed_run.images.get(key, {}), new_run.images.get(key, {}))
    for key, bits in packed.items():
        if built.get(key) != bits["sha256"]:
            differences.append(Difference(f"image {key}", "sha256 of its file", bits["sha256"], built.get(key)))
    return differences


def _environment_settings(environment: Environment | None) -> dict[str, object]:
    """Return the variables of an environment and the placement of its processes."""
    if environment is None:
        return {}
    placement = {name: getattr(environment, name) for name in ("preload", "cpus", "memory_nodes", "cpu_quota")}
    return {**environment.variables, **placement}


def run_differences(packed_run: Run, new_run: Run, hosts: Sequence[Host]) -> list[Difference]:
    """List differences in the machine, the benchmark and the values that environments set.

    ``hosts`` are the hosts of both runs as their trials saw them; a field unknown for either is skipped.
    """
    packed_host, new_host = (asdict(host) for host in hosts)
    known_fields = [key for key in _HOST_FIELDS if None not in (packed_host[key], new_host[key])]
    differences = [
        *_mapping_differences("host", *({key: host[key] for key in known_fields} for host in (packed_host, new_host))),
        *_mapping_differences("benchmark", {"digest": packed_run.bench_digest}, {"digest": new_run.bench_digest}),
    ]
    for name, environment in packed_run.environments.items():
        differences += _mapping_differences(
            f"environment {name}",
            _environment_settings(environment),
            _environment_settings(new_run.environments.get(name)),
        )
    for arm, reason in new_run.skipped.items():
        if arm not in packed_run.skipped:
            differences.append(Difference(arm, "skipped here", None, reason))
    return differences


def evidence_differences(first: Measurements, second: Measurements) -> list[Difference]:
    """List differences in the evidence that processes reported, one entry for all environments that share it."""
    arms_by_difference: dict[tuple[str, str, str], list[str]] = {}
    for arm, facts in first.facts.items():
        other_facts = second.facts.get(arm)
        if other_facts is None or not other_facts.outcomes["ok"] or not facts.outcomes["ok"]:
            continue
        for path in dict.fromkeys((*facts.evidence, *other_facts.evidence)):
            packed_text, new_text = (
                " or ".join(sorted(side.evidence.get(path, {}))) or "nothing" for side in (facts, other_facts)
            )
            if packed_text != new_text:
                arms_by_difference.setdefault((path, packed_text, new_text), []).append(arm)
    return [
        Difference(f"evidence of {_arms_text(arms)}", path, packed_text, new_text)
        for (path, packed_text, new_text), arms in arms_by_difference.items()
    ]


def _arms_text(arms: Sequence[str]) -> str:
    return arms[0] if len(arms) == 1 else f"{len(arms)} environments"


class _Side(NamedTuple):
    """One of the two runs, as its trials saw it."""

    run: Run
    measurements: Measurements
    analysis: Analysis


def _read_side(folder: RunFolder) -> _Side:
    run = folder.load()
    measurements = read_measurements(folder, run.plan)
    analysis = estimate(run.plan, measurements, workloads=run.workloads, environments=run.environments, metrics=())
    return _Side(run, measurements, analysis)


def compare_reproduction(
    folders: tuple[RunFolder, RunFolder],
    packed: Mapping[str, Mapping[str, str]],
    built: Mapping[str, str],
    tolerance: float,
) -> Reproduction:
    """Compare a packed run with its reproduction on this machine."""
    sides = first, second = _read_side(folders[0]), _read_side(folders[1])
    hosts = [observed_host(side.run.host, side.measurements) for side in sides]
    differences = (
        *image_differences(first.run, second.run, packed, built),
        *run_differences(first.run, second.run, hosts),
        *evidence_differences(first.measurements, second.measurements),
    )
    effects = compare_effects(first.analysis, second.analysis, tolerance)
    notes = [(side.run.name, slow_phases_note(side.measurements.block_gaps)) for side in sides]
    cautions = [f"{name}: {text}" for name, text in notes if text and any(item.low for item in effects)]
    cautions += [f"{side.run.name}: {text}" for side in sides for text in _effect_cautions(*side)]
    return Reproduction(first.run, second.run, differences, effects, tolerance, tuple(cautions))


def _effect_cautions(run: Run, measurements: Measurements, analysis: Analysis) -> Iterator[str]:
    """Yield the cautions about a run's own effects: unequal work, flags and unchecked work."""
    for effect in analysis.primary_effects():
        if Flag.UNEQUAL_WORK in effect.flags:
            yield f"{effect.arm} did not do the same work as its reference: {'; '.join(effect.notes)}"
    yield from flag_cautions(analysis, (effect.arm for effect in analysis.primary_effects()))
    yield from unchecked_work_cautions(run, measurements, (effect.workload for effect in analysis.primary_effects()))
