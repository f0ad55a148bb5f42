"""Synthetic runs with known effects, written as real results folders."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from envmatrix.matrix import Design
from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan, Slot, make_arms
from envmatrix.plan.environment import Environment, Image
from envmatrix.plan.turn_order import with_separate_references
from envmatrix.results import Run, RunFolder, Trial, trial_of
from envmatrix.system.host import Host

MATRIX_TEXT = "version: 1\n"


@dataclass(frozen=True)
class Machine:
    """Behaviour of a synthetic machine. ``speed`` maps environments to true speed-ups; noise is in log units."""

    speed: Mapping[str, float]
    noise: float = 0.03
    drift: float = 0.0
    burst: float = 0.0
    loss: Mapping[str, float] = field(default_factory=dict)
    outcome: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    stand_in: bool = True
    steps: int = 20


def make_plan(environments: tuple[str, ...], **more: Any) -> Plan:
    """Return a plan with these environments, the baseline and the control."""
    workloads, engines = more.pop("workloads", ("cnn",)), more.pop("engines", ("local",))
    arms = make_arms(environments, workloads, engines, "baseline")
    fields = {
        "design": "quick", "arms": arms, "seed": 1, "min_blocks": 6, "max_blocks": 40, "target": 0.03,
        "margin": 0.03, "budget_s": 300.0,
    }  # fmt: skip
    return Plan(**{**fields, **more})


HOST = Host("made-up-host", "6.1", "x86_64", "made-up", "made-up CPU", (0, 1), (0, 1), 1, 2**34, hypervisor=False)
#: The host as a run under Slurm records it.
NODE = Host("n1,n2", None, None, None, None, HOST.cpus, HOST.physical_cpus, None, None, hypervisor=None)


def make_environment(name: str, levels: Mapping[str, str] | None = None, **more: Any) -> Environment:
    """Return an environment as a run stores it."""
    fields = {
        "description": "", "image": Image("torch-2.13.0"), "preload": (("", f"lib{name}.so"),), "claims": (),
        "variables": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": None}, "changes_numerics": name == "bf16",
    }  # fmt: skip
    return Environment(name=name, levels=levels or {"malloc": name}, **{**fields, **more})


def make_design(plan: Plan, **more: Any) -> Design:
    """Return a design with the limits of a plan."""
    limits = {
        "name": plan.design, "seed": plan.seed, "min_blocks": plan.min_blocks, "max_blocks": plan.max_blocks,
        "target": plan.target, "margin": plan.margin, "budget": plan.budget_s, "race": plan.race,
        "claims_first": plan.claims_first, "read_once": plan.read_once,
        "workloads": ("cnn",), "schedule": "sequential",
    }  # fmt: skip
    return Design.model_validate({**limits, **more})


def make_run(plan: Plan, name: str = "made-up", *, design: Mapping[str, Any] | None = None, **more: Any) -> Run:
    """Return run.json's content for a plan; ``design`` overrides the plan's limits."""
    fields = {
        "name": name, "created": "2026-01-01T00:00:00Z", "design": make_design(plan, **(design or {})),
        "arms": plan.arms, "matrix_digest": "sha256:00", "bench_digest": "sha256:11", "host": HOST,
        "versions": {"envmatrix": "0.1.0"}, "libraries": (),
        "environments": {arm.runs: make_environment(arm.runs) for arm in plan.arms},
        "workloads": {arm.workload: Workload(name=arm.workload, options={"batch_size": 64}) for arm in plan.arms},
    }  # fmt: skip
    return Run(**{**fields, **more})


def record_of(slot: Slot, machine: Machine, seconds: float, chance: random.Random) -> dict[str, Any]:
    """Return a record as described in docs/record.md."""
    environment = slot.arm.runs
    step = int(seconds * 1e9 / machine.steps)
    loss = machine.loss.get(environment, 0.5) + chance.gauss(0, 1e-4)
    memory = machine.memory.get(environment, 6e8) * math.exp(chance.gauss(0, 0.005))
    return {
        "schema": 1, "bench": {"digest": "sha256:11"},
        "workload": {"digest": "sha256:22", "options": {"batch_size": 64}},
        "data": {"name": "fashion-mnist-stand-in", "stand_in": machine.stand_in, "digest": "sha256:33"},
        "timing": {"steps_ns": [int(step * math.exp(chance.gauss(0, 0.1))) for _ in range(machine.steps)]},
        "metrics": {
            "samples_per_s": 64 * machine.steps / seconds, "training_s": seconds, "startup_s": 2.0,
            "import_s": 1.2,
            "warmup_s": 0.3, "step_median_s": seconds / machine.steps, "peak_rss_bytes": int(memory),
            "minor_faults": 20000 + chance.randrange(100), "major_faults": 0, "voluntary_switches": 120,
            "involuntary_switches": 30,
        },
        "result": {"loss": loss, "accuracy": 0.9, "parameters": 1630090, "samples": 64 * machine.steps,
                   "steps": machine.steps},
        "skipped": None,
        "evidence": {
            "openmp": {"library": "libiomp5" if "intel" in environment else "libgomp", "threads": 2},
            "malloc": {"library": f"lib{environment}" if "malloc" in environment else "libc"},
            "torch": {"version": "2.13.0+cpu", "threads": 2}, "cpu": {"model": "made-up CPU"},
            "system": {"load_1m": 0.1, "steal_ticks": 0, "kernel": "6.1"},
            "variables": {"OMP_NUM_THREADS": "2"},
        },
    }  # fmt: skip


def make_trials(plan: Plan, machine: Machine, blocks: int, seed: int = 1) -> Iterator[Trial]:
    """Yield the trials of ``blocks`` blocks in the plan's order, on a machine that may drift."""
    chance = random.Random(seed)
    drift, clock = 0.0, 1.7e9
    for index in range(blocks):
        for slot in plan.block(index):
            drift = 0.97 * drift + chance.gauss(0, machine.drift)
            disturbed = chance.random() < machine.burst
            noise = chance.gauss(0, machine.noise) + drift + (abs(chance.gauss(0, 0.3)) if disturbed else 0.0)
            seconds = 4.0 / machine.speed.get(slot.arm.runs, 1.0) * math.exp(noise)
            outcome = machine.outcome.get(slot.arm.environment, "ok")
            more = {"wall_s": seconds + 2, "started": clock, "node": "made-up-host"}
            clock += seconds + 2
            if outcome == "ok":
                yield trial_of(slot, "ok", document=record_of(slot, machine, seconds, chance), **more)
            else:
                yield trial_of(slot, outcome, f"made to be {outcome}", **more)


def slowed(
    plan: Plan,
    machine: Machine,
    blocks: int,
    slow: Callable[[Trial], bool],
    by: float = 2.0,
    period: float | None = None,
) -> list[Trial]:
    """Return trials, one block each ``period`` seconds; those with ``slow(trial)`` are ``by`` times slower."""
    found = []
    for trial in make_trials(plan, machine, blocks):
        document = trial.document
        if slow(trial):
            rate = document["metrics"]["samples_per_s"] / by
            document = {**document, "metrics": {**document["metrics"], "samples_per_s": rate}}
        started = trial.started if period is None else 1.7e9 + trial.block * period
        found.append(replace(trial, document=document, started=started))
    return found


def copied(folder: RunFolder, name: str) -> RunFolder:
    """Write a run with another name and the same trials next to one."""
    other = RunFolder(folder.path.with_name(name))
    shutil.copytree(folder.path, other.path)
    body = json.loads(folder.run_file.read_text())
    other.run_file.write_text(json.dumps({**body, "name": name}))
    return other


def write_run(path: Path, plan: Plan, machine: Machine, blocks: int, seed: int = 1, **more: Any) -> RunFolder:
    """Write a real results folder and return it."""
    folder = RunFolder(path)
    folder.create(make_run(plan, path.name, **more), MATRIX_TEXT)
    with patch("os.fsync"):  # synthetic data need not survive a crash
        for trial in make_trials(plan, machine, blocks, seed):
            folder.append(trial)
    return folder


def mixed_plan(environments: tuple[str, ...] = ("a", "b", "c"), lone: tuple[str, ...] = ("a",), **more: Any) -> Plan:
    """Return an interleaved plan in which ``lone`` run separately, compared with a separate copy of the baseline."""
    plan = make_plan(environments, **more)
    return replace(
        plan, arms=with_separate_references(plan.arms, {arm.name for arm in plan.arms if arm.environment in lone})
    )


def mixed_trials(plan: Plan, machine: Machine, blocks: int) -> Iterator[Trial]:
    """Yield trials; separate ones have half the speed, and another loss, of interleaved ones."""
    alone = {arm.name for arm in plan.arms if arm.is_uninterrupted_copy}
    alone |= {arm.name for arm in plan.arms if arm.reference in alone}
    for trial in make_trials(plan, machine, blocks):
        document = trial.document
        if trial.arm in alone and document:
            rate, result = document["metrics"]["samples_per_s"] / 2, {**document["result"], "loss": 0.9}
            document = {**document, "metrics": {**document["metrics"], "samples_per_s": rate}, "result": result}
        together = None if trial.arm in alone else len(plan.arms) - len(alone)
        yield replace(trial, document=document, together=together)


def write_mixed(path: Path, machine: Machine, blocks: int, plan: Plan | None = None, **more: Any) -> RunFolder:
    """Write the results folder of such a run."""
    folder, plan = RunFolder(path), plan or mixed_plan()
    folder.create(make_run(plan, path.name, design={"schedule": "turns"}, **more), MATRIX_TEXT)
    for trial in mixed_trials(plan, machine, blocks):
        folder.append(trial)
    return folder
