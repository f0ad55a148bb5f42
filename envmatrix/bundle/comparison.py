"""What differs between a packed run and its reproduction, and which effects were found again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from envmatrix.errors import ExitCode, first_code
from envmatrix.plan.environment import Environment
from envmatrix.results import Run, RunFolder
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.comparison import unchecked_works, weaker
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.observed_host import seen_host
from envmatrix.stats.replication import Replication, compare
from envmatrix.stats.slow_phases import told_short
from envmatrix.system.host import Host

_HOST = ("cpu_model", "cpus", "numa_nodes", "memory_bytes", "kernel", "distribution", "hypervisor")


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same: ``then`` in the pack, ``now`` here (None: absent)."""

    where: str
    what: str
    then: object
    now: object

    def __str__(self) -> str:
        return f"{self.where}: {self.what} was {_shown(self.then)}, is {_shown(self.now)}"


@dataclass(frozen=True)
class Reproduction:
    """The answer of ``envmatrix reproduce``."""

    first: Run
    second: Run
    differences: tuple[Difference, ...]
    effects: tuple[Replication, ...]
    tolerance: float
    cautions: tuple[str, ...] = ()

    def gate(self, *, fail_undecided: bool = False) -> ExitCode:
        """Return the exit code: 7 for other work, 3 if an effect was not reproduced, 6 if ``fail_undecided`` asks."""
        answers = {item.answer for item in self.effects}
        other = any(item.second and Flag.UNEQUAL_WORK in item.second.flags for item in self.effects)
        return first_code(
            ExitCode.OTHER_WORK if other else ExitCode.FINE,
            ExitCode.SOME_FAILED if "not reproduced" in answers else ExitCode.FINE,
            ExitCode.UNDECIDED if fail_undecided and "undecided" in answers else ExitCode.FINE,
        )

    @property
    def exit_code(self) -> ExitCode:
        """What ``envmatrix reproduce`` exits with as far as the effects decide it."""
        return self.gate()

    def to_json(self, exit_code: ExitCode | None = None) -> dict[str, object]:
        """Return the document for programs; ``exit_code`` is the command's (None: what the effects say)."""
        return {
            "schema": 1, "exit_code": int(self.exit_code if exit_code is None else exit_code),
            "packed_run": self.first.name, "run": self.second.name, "tolerance": self.tolerance,
            "differences": [asdict(item) for item in self.differences],
            "effects": [_effect_json(item) for item in self.effects], "cautions": list(self.cautions),
        }  # fmt: skip


def _shown(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _effect_json(item: Replication) -> dict[str, object]:
    def part(effect: Effect | None) -> dict[str, object] | None:
        keys = ("ratio", "low", "high", "verdict", "blocks", "flags")
        return None if effect is None else {key: getattr(effect, key) for key in keys}

    return {
        "arm": item.arm, "environment": item.environment, "answer": item.answer, "same_direction": item.same_direction,
        "then": part(item.first), "now": part(item.second), "difference": {"low": item.low, "high": item.high},
        "unsure": item.unsure,
    }  # fmt: skip


def _mappings(where: str, then: Mapping[str, object], now: Mapping[str, object]) -> Iterator[Difference]:
    for key in dict.fromkeys((*then, *now)):
        values = [list(v) if isinstance(v, tuple) else v for v in (then.get(key), now.get(key))]
        if values[0] != values[1]:
            yield Difference(where, key, *values)


def image_differences(
    first: Run, second: Run, packed: Mapping[str, Mapping[str, str]], built: Mapping[str, str]
) -> list[Difference]:
    """List what differs in the bits of images. ``packed`` and ``built`` hold the sha256 of images that are files."""
    found: list[Difference] = []
    for key in dict.fromkeys((*first.images, *second.images)):
        found += _mappings(f"image {key}", first.images.get(key, {}), second.images.get(key, {}))
    for key, bits in packed.items():
        if built.get(key) != bits["sha256"]:
            found.append(Difference(f"image {key}", "sha256 of its file", bits["sha256"], built.get(key)))
    return found


def _set_by(environment: Environment | None) -> dict[str, object]:
    """Return what an environment sets: its variables, and where and with what its processes start."""
    if environment is None:
        return {}
    placed = {name: getattr(environment, name) for name in ("preload", "cpus", "memory_nodes", "cpu_quota")}
    return {**environment.variables, **placed}


def run_differences(first: Run, second: Run, hosts: Sequence[Host]) -> list[Difference]:
    """List what differs in the machine, the benchmark and what environments set (templates fill per machine).

    ``hosts`` are those of both runs as their trials saw them; what nobody said of one is no difference.
    """
    then, now = (asdict(host) for host in hosts)
    known = [key for key in _HOST if None not in (then[key], now[key])]
    found = [
        *_mappings("host", *({key: host[key] for key in known} for host in (then, now))),
        *_mappings("benchmark", {"digest": first.bench_digest}, {"digest": second.bench_digest}),
    ]
    for name, environment in first.environments.items():
        found += _mappings(f"environment {name}", _set_by(environment), _set_by(second.environments.get(name)))
    for arm, reason in second.skipped.items():
        if arm not in first.skipped:
            found.append(Difference(arm, "skipped here", None, reason))
    return found


def evidence_differences(first: Measurements, second: Measurements) -> list[Difference]:
    """List what the processes themselves saw differently, each once for all arms that agree on it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for arm, facts in first.facts.items():
        other = second.facts.get(arm)
        if other is None or not other.outcomes["ok"] or not facts.outcomes["ok"]:
            continue
        for path in dict.fromkeys((*facts.evidence, *other.evidence)):
            then, now = (" or ".join(sorted(one.evidence.get(path, {}))) or "nothing" for one in (facts, other))
            if then != now:
                found.setdefault((path, then, now), []).append(arm)
    return [Difference(f"evidence of {_many(arms)}", path, then, now) for (path, then, now), arms in found.items()]


def _many(arms: Sequence[str]) -> str:
    return arms[0] if len(arms) == 1 else f"{len(arms)} arms"


def reproduction(
    folders: tuple[RunFolder, RunFolder],
    packed: Mapping[str, Mapping[str, str]],
    built: Mapping[str, str],
    tolerance: float,
) -> Reproduction:
    """Compare a packed run with the one that was made here from it."""
    first, second = (folder.load() for folder in folders)
    then, now = (read_measurements(folder, run.plan) for folder, run in zip(folders, (first, second), strict=True))
    analyses = [
        estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
        for run, measured in ((first, then), (second, now))
    ]
    differences = [
        *image_differences(first, second, packed, built),
        *run_differences(first, second, [seen_host(first.host, then), seen_host(second.host, now)]),
        *evidence_differences(then, now),
    ]
    effects = compare(analyses[0], analyses[1], tolerance)
    short = [(run.name, told_short(one.apart)) for run, one in ((first, then), (second, now))]
    cautions = [f"{name}: {text}" for name, text in short if text and any(item.low for item in effects)]
    for run, seen, analysis in zip((first, second), (then, now), analyses, strict=True):
        cautions += [f"{run.name}: {text}" for text in _weaker(run, seen, analysis)]
    return Reproduction(first, second, tuple(differences), effects, tolerance, tuple(cautions))


def _weaker(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[str]:
    """Yield what a run's own tables say against its effects."""
    for effect in analysis.primary_effects():
        if Flag.UNEQUAL_WORK in effect.flags:
            yield f"{effect.arm} did not do the work of its reference: {'; '.join(effect.notes)}"
    yield from weaker(analysis, (effect.arm for effect in analysis.primary_effects()))
    yield from unchecked_works(run, measured, (effect.workload for effect in analysis.primary_effects()))
