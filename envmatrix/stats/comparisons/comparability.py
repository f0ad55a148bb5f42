"""Which stored runs can be compared: those of one machine, schedule, benchmark, workload and data set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace

from envmatrix.errors import StoreError
from envmatrix.plan import Arm
from envmatrix.plan.interleaving import turn_length_text
from envmatrix.results import Run, RunFolder
from envmatrix.results.anonymize import is_numbered_host
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.observed_host import observed_host

_BUILD_FACT_PREFIXES = ("package ", "system ", "base_digest")
_HOST_FACTS = ("name", "cpu_model", "cpus", "memory_bytes")


def comparability_problems(old: Run, new: Run, measured: tuple[Measurements, Measurements]) -> tuple[str, ...]:
    """Return why two runs are not comparable: another machine, schedule, benchmark, workload or data set."""
    hosts = [observed_host(run.host, measurements) for run, measurements in zip((old, new), measured, strict=True)]
    problems = []
    for key in _HOST_FACTS:
        one, two = (getattr(host, key) for host in hosts)
        is_anonymous = key == "name" and (is_numbered_host(one) or is_numbered_host(two))
        if one != two and None not in (one, two) and not is_anonymous:
            problems.append(f"the hosts differ in {key}: {_fact_text(one)} and {_fact_text(two)}")
    if not is_same_schedule(old, new):
        problems.append(f"the schedules differ: {_describe_schedule(old)} and {_describe_schedule(new)}")
    if old.bench_digest != new.bench_digest:
        problems.append("the benchmark itself differs")
    for name, text in (("work", "the workloads differ"), ("data", "the data sets differ")):
        seen = [{value for fact in one.facts.values() for value in getattr(fact, name)} for one in measured]
        if seen[0] and seen[1] and seen[0].isdisjoint(seen[1]):
            problems.append(text)
    return tuple(problems)


def _fact_text(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def run_identity(run: Run) -> tuple[str, str]:
    """Return a key that a run shares with copies of its folder, whose trials are no further measurements."""
    return run.name, run.created


def sibling_runs(old: RunFolder, known_runs: Iterable[Run]) -> list[tuple[RunFolder, Run]]:
    """Return the runs in the same folder as ``old``, each once, without those in ``known_runs``.

    Unreadable runs are skipped.
    """
    seen, siblings = {run_identity(run) for run in known_runs}, []
    for path in sorted(old.path.resolve().parent.iterdir()):
        with contextlib.suppress(StoreError, OSError):
            if (path / "run.json").is_file():
                run = RunFolder(path).load_for_resume()
                if run_identity(run) not in seen:
                    seen.add(run_identity(run))
                    siblings.append((RunFolder(path), run))
    return siblings


def is_same_setup(one: Run, other: Run, arm: Arm) -> bool:
    """Return whether two runs have the same setup for ``arm``: environment, image, workload, program and benchmark."""
    same_conditions = one.bench_digest == other.bench_digest and is_same_schedule(one, other)
    return same_conditions and _measured_setup(one, arm) == _measured_setup(other, arm)


def is_same_schedule(one: Run, other: Run) -> bool:
    """Return whether two runs measured trials in the same way; interleaved and separate trials are not comparable."""
    schedules = [
        (design.schedule, design.schedule == "turns" and (design.turn, design.turn_apart))
        for design in (one.design, other.design)
    ]
    return schedules[0] == schedules[1]


def _describe_schedule(run: Run) -> str:
    """Return how a run measured its trials: one after the other, or turns of steps or of a fraction of a second."""
    if run.design.schedule != "turns":
        return "one trial after the other"
    kinds = sorted({workload.tells_steps for workload in run.workloads.values()}, reverse=True) or [True]
    apart_text = f", {run.design.turn_apart} before them set apart" if kinds[0] else ""
    return f"turns of {' or '.join(turn_length_text(run.design.turn, steps=kind) for kind in kinds)}{apart_text}"


def _measured_setup(run: Run, arm: Arm) -> tuple[object, ...]:
    environment = run.environments.get(arm.runs)
    has_arm = any(run_arm.name == arm.name and run_arm.runs == arm.runs for run_arm in run.arms)
    if environment is None or not has_arm:
        return ()
    facts = run.images.get(f"{environment.image_key}@{arm.engine}", {})
    build_facts = {name: value for name, value in facts.items() if name.startswith(_BUILD_FACT_PREFIXES)}
    workload_and_program = run.workloads.get(arm.workload), run.programs.get(arm.workload)
    return replace(environment, description="", own_levels=None), build_facts, workload_and_program
