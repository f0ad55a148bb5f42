"""Synthetic runs whose records say where the time of a step went, with known changes."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from unittest.mock import patch

from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from envmatrix.stats.step_account import PARTS
from tests.synthetic import MATRIX_TEXT, Machine, make_environment, make_plan, make_run, make_trials

STEPS = 20
#: Milliseconds of each part, and events, per step.
USUAL = {"user": 20.0, "kernel": 5.0, "waiting": 0.5, "blocked": 2.0, "minor_faults": 1000.0, "voluntary_switches": 1.0}
FAULT_MS = 0.0025
#: One's own program in two environments: its run gets other trials by ``replace_trials``, and is then confirmed.
PROGRAM = "print(sum(range(1000)))\n"
PROGRAM_MATRIX = f"""
version: 2
factors:
  python: {{here: {{interpreter: {sys.executable}}}}}
  word: {{none: {{}}, some: {{env: {{WORD: some}}}}}}
environments: {{baseline: {{}}, some: {{word: some}}}}
workloads: {{mine: {{command: [python, train.py], metric: {{wall: true}}}}}}
designs: {{default: {{environments: [some], workloads: mine, max_blocks: 1}}}}
"""


def thread_of(parts, **over):
    """Return a record's ``step_thread``; ``parts`` are milliseconds and events per step."""
    nanoseconds = {name: round(parts[name] * 1e6 * STEPS) for name in PARTS}
    events = {name: round(parts.get(name, 0.0) * STEPS) for name in ("minor_faults", "voluntary_switches")}
    return {
        "wall_ns": sum(nanoseconds.values()), "cpu_ns": nanoseconds["user"] + nanoseconds["kernel"],
        "user_ns": nanoseconds["user"], "system_ns": nanoseconds["kernel"], "waited_ns": nanoseconds["waiting"],
        **events, "major_faults": 0, "involuntary_switches": round(parts.get("involuntary_switches", 0.0) * STEPS),
        "others": {"busy": 1, "ended": 0, "cpu_ns": 10**9, "waited_ns": 0}, "steps": STEPS,
        "prices": {"minor_fault_ns": FAULT_MS * 1e6, "wake_up_ns": 5000.0, "memory_call_ns": 2000.0}, **over,
    }  # fmt: skip


def run_of(
    path,
    changes,
    blocks=8,
    noise=0.02,
    levels=None,
    change=lambda _, thread: thread,
    profile=lambda _: None,
    seed=7,
    **more,
):
    """Write and read a run in which each environment changes parts of a step by the milliseconds in ``changes``."""
    plan = make_plan(tuple(name for name in changes if name not in ("baseline", "control")))
    environments = {
        arm.runs: make_environment(arm.runs, (levels or {}).get(arm.runs), variables={}) for arm in plan.arms
    }
    folder = RunFolder(path)
    folder.create(make_run(plan, path.name, environments=environments), MATRIX_TEXT)
    with patch("os.fsync"):  # synthetic data need not survive a crash
        for trial in trials_of(plan, changes, blocks, noise, change, profile, more, seed):
            folder.append(trial)
    return summarise(folder)


def trials_of(plan, changes, blocks, noise, change, profile, more, seed=7):
    chance = random.Random(seed)
    for trial in make_trials(plan, Machine({}), blocks):
        of_environment = changes.get(trial.environment, {})
        parts = {
            name: (USUAL.get(name, 0.0) + of_environment.get(name, 0.0)) * (1 + chance.gauss(0, noise))
            for name in {**USUAL, **of_environment}
        }
        thread = change(trial, thread_of(parts))
        seconds = sum(parts[name] for name in PARTS) / 1000 * STEPS
        document = {**trial.document, "step_thread": thread, "profile": profile(trial)}
        document["metrics"] = {
            **document["metrics"], "training_s": seconds, "samples_per_s": 64 * STEPS / seconds,
            "throttled_s": parts.get("throttled_s", 0.0), **more,
        }  # fmt: skip
        yield replace(trial, document=document)


def replace_trials(folder, changes, blocks=8):
    """Replace the trials of a real run by those of a quiet machine, in which environments have these ``changes``."""
    file = folder / "run.json"
    document = json.loads(file.read_text())
    document["design"]["max_blocks"] = blocks
    file.write_text(json.dumps(document))
    run = RunFolder(folder)
    run.trials_file.unlink()
    with patch("os.fsync"):
        for trial in trials_of(run.load().plan, changes, blocks, 0.002, lambda _, thread: thread, lambda _: None, {}):
            trial.document["metrics"]["value"] = trial.document["metrics"]["training_s"]  # the wall time
            run.append(trial)


def why(summary, environment):
    return next(row.why for group in summary.groups for row in group.all_rows if row.arm.environment == environment)


def ms(interval):
    return tuple(round(1e3 * end, 3) for end in (interval.low, interval.mean, interval.high))
