"""Measure the precision of a minute of interleaved trials: `nox -s selfbench -- --precision`; also for `--agreement`.

Two ways to measure the same arms alternate block by block, in random order, so both meet the same conditions. All arms
are interleaved here, even those with `turns: false`: whether that is valid is the question. Each way is a real run in
the folder, continued when the command is repeated; `--minutes 0` only recomputes the results.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envmatrix.api.matrix_and_run_lookup import find_matrix
from envmatrix.api.runs import find_run_host
from envmatrix.block import interrupts
from envmatrix.errors import EnvmatrixError
from envmatrix.evidence.trial_record import Timing
from envmatrix.matrix import Design, Matrix, load
from envmatrix.matrix.model import EnvironmentEntry
from envmatrix.plan import Plan
from envmatrix.results import RunFolder, Trial
from envmatrix.runner.loop import _remove_leftovers
from envmatrix.stats.measurements import Measurements, fold_trials
from envmatrix.stats.metrics import THROUGHPUT
from envmatrix.stats.pairing import families, log_ratios
from envmatrix.system.atomic_files import append_line, write_whole
from envmatrix.system.machine_lock import alone_on_machine
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from envmatrix.trials.experiment_setup import Experiment, create_experiment, find_design, reopen_experiment
from envmatrix.trials.interleave import TurnLengths
from envmatrix.trials.new_run_options import NewRun
from validation import precision_figures as figures
from validation import precision_parts
from validation.measured_blocks import Jobs, here
from validation.measured_parts import keep, trials_of
from validation.precision_figures import Measured

#: The design of two copies of the baseline, based on the first other requested design, or on `default`.
COPIES = "copies"
#: The share of time for the two copies, if other designs are measured too.
_SHARE = 0.25
_MOST = 100_000


def progress(text: str) -> None:
    """Print a progress message."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Way:
    """One way to measure a design: a run and its next block."""

    design: str
    name: str
    experiment: Experiment
    groups: TrialGrouper
    block: int
    jobs: Jobs | None = None
    lengths: TurnLengths | None = None

    def run_block(self, notes: Path) -> float:
        """Run one block; record and return its duration (s)."""
        began, load = time.time(), os.getloadavg()[0]
        start, slots = time.monotonic(), self.experiment.plan.block(self.block)
        run = self.experiment, self.groups, slots, progress, self.lengths
        self.keep(self.jobs.trials(slots) if self.jobs else here(*run))
        seconds = time.monotonic() - start
        note = {"design": self.design, "way": self.name, "block": self.block, "seconds": round(seconds, 3),
                "began": round(began, 3), "load_1m": load}  # fmt: skip
        append_line(notes, json.dumps(note))
        self.block += 1
        return seconds

    def keep(self, trials: Iterator[Trial]) -> None:
        """Write each trial to disk before asking for the next one."""
        for trial in trials:
            with interrupts.held():
                self.groups.note(self.experiment.folder.append(trial))
            if trial.outcome not in ("ok", "skipped"):
                progress(f"{trial.trial} {trial.arm}: {trial.outcome}: {trial.reason}")

    def take_up(self, trial: Trial) -> None:
        """Register a trial of an earlier start."""
        self.groups.note(trial)
        self.block = max(self.block, trial.block + 1)
        if self.jobs:
            self.jobs.done.add(trial.trial)


def every_arm_in_turns(matrix: Matrix) -> Matrix:
    """Return a matrix in which no level has `turns: false`."""
    factors = {
        name: factor.model_copy(update={"levels": {
            level: body.model_copy(update={"turns": True}) for level, body in factor.levels.items()
        }})
        for name, factor in matrix.factors.items()
    }  # fmt: skip
    return matrix.model_copy(update={"factors": factors})


def with_copies(matrix: Matrix, design: Design) -> Matrix:
    """Return a matrix with the further copies of the baseline that a design names."""
    levels = matrix.environments[design.baseline].levels
    made = {name: EnvironmentEntry(name=name, levels=levels) for name in design.environments}
    return matrix.model_copy(update={"environments": {**made, **matrix.environments}})


def design_of(matrix: Matrix, name: str, chosen: argparse.Namespace, schedule: str, count: int = 2) -> Design:
    """Return a design for this measurement: only the clock ends it. ``count`` is the number of copies."""
    copies = name == COPIES and COPIES not in matrix.designs
    others = [other for other in chosen.design.split(",") if other != COPIES]
    found = find_design(matrix, [*others, "default"][0] if copies else name)
    further = tuple(f"copy-{number}" for number in range(3, count + 1))
    named = {"name": name, "environments": further, "factors": {}, "cumulative": (), "application": ()}
    only = {"environments": tuple(chosen.environments.split(",")), "factors": {}} if chosen.environments else {}
    turn = {"turn": chosen.turn} if chosen.turn else {}
    limits = {"schedule": schedule, "race": False, "max_blocks": _MOST, "budget": 1e6}
    return found.model_copy(update={**(named if copies else only), **turn, **limits})


def opened(
    chosen: argparse.Namespace, name: str, way: str, options: Mapping[str, Any] | None = None, *,
    count: int = 2, own: Mapping[str, Any] | None = None,
) -> Way:  # fmt: skip
    """Begin a run, or continue the one in the folder.

    ``options`` override those of its workloads, ``count`` is the number of processes for copies, ``own`` overrides
    fields of its design.
    """
    folder, matrix = RunFolder(chosen.to / f"{name}-{way}"), every_arm_in_turns(load(find_matrix(chosen.matrix)))
    design = design_of(matrix, name, chosen, "turns" if way == "turns" else "sequential", count)
    matrix = with_copies(matrix, design) if name == COPIES else matrix
    matrix, design = with_options(matrix, design, options or {}), design.model_copy(update=dict(own or {}))
    if folder.path.exists():
        experiment = reopen_experiment(folder, find_matrix(chosen.matrix), progress)
    else:
        command, where = ("selfbench", *sys.argv[1:]), chosen.launcher
        asked = {"nodelist": (chosen.node,)} if chosen.node else {}
        new_run = NewRun(chosen.to, folder.path.name, where, asked, command, progress=progress)
        host = find_run_host(matrix, design, (chosen.engine,), new_run)
        experiment = create_experiment(matrix, design, (chosen.engine,), new_run, host)
    experiment.folder.lock()
    experiment.folder.remove_partial_lines()
    elsewhere = experiment.run.launcher != "here"
    groups = TrialGrouper(experiment, progress)
    found = Way(name, way, experiment, groups, 0, Jobs(experiment, groups, progress) if elsewhere else None)
    for trial in experiment.folder.trials(experiment.plan):
        found.take_up(trial)
    if found.jobs:  # wait for trials of an earlier start before anything is timed
        found.keep(found.jobs.trials())
        found.block = max(found.block, found.jobs.last_block() + 1)
    return found


def with_options(matrix: Matrix, design: Design, options: Mapping[str, Any]) -> Matrix:
    """Return a matrix whose workloads have these options, such as ``steps``."""
    other = {
        name: matrix.workloads[name].model_copy(update={"options": {**matrix.workloads[name].options, **options}})
        for name in design.workloads
    }
    return matrix.model_copy(update={"workloads": {**matrix.workloads, **other}})


@contextlib.contextmanager
def measuring(ways: Sequence[Way]) -> Iterator[None]:
    """Lock this machine, remove leftovers, and treat Ctrl-C as the end of the measurement."""
    with interrupts.handle_signals(), alone_on_machine(progress):
        for way in ways:
            _remove_leftovers(way.experiment, progress)
        try:
            yield
        finally:
            for way in ways:
                _remove_leftovers(way.experiment, progress)
                way.experiment.folder.unlock()


def in_time(ways: Sequence[Way], minutes: float, notes: Path, *, even: bool) -> None:
    """Run blocks of all ways until the time is over.

    ``even``: as many blocks of each. Otherwise the first way gets a quarter of the time of the others.
    """
    chance = random.Random(f"{ways[0].design}:{ways[0].block}")
    deadline, longest, began = time.monotonic() + 60 * minutes, 0.0, time.monotonic()
    while not longest or began + longest / 2 < deadline:
        took = 0.0
        for way in chance.sample(list(ways), len(ways)):
            blocks, spent = 0, 0.0
            share = 0.0 if even or way is not ways[0] else longest / 5
            while not blocks or spent < share:
                spent += way.run_block(notes)
                blocks += 1
            took += spent
        longest, began = max(longest, took), time.monotonic()
        left = max(0.0, deadline - began)
        progress(f"{ways[0].design}: a round of {took:.0f} s, block {ways[-1].block}, {left:.0f} s left")


def measured_of(folder: RunFolder, notes: Mapping[tuple[str, int], float]) -> tuple[Measured, Measurements]:
    """Return the measurements of a run, from whole blocks only."""
    run = folder.load()
    numbers = fold_trials(run.plan, trials_of(folder, run.plan))
    whole = [index for index, block in enumerate(numbers.blocks) if (folder.path.name, int(block)) in notes]
    seconds = np.array([notes[folder.path.name, int(numbers.blocks[index])] for index in whole])
    return paired_by_block(run.plan, lambda arm: numbers.of(arm, THROUGHPUT.name)[whole], seconds), numbers


def paired_by_block(plan: Plan, rates: Callable[[str], figures.Floats], seconds: figures.Floats) -> Measured:
    """Return the log ratios of a plan's arms over their references, from the rates of each arm per block."""
    arms, rows = [], []
    for family in families(plan):
        names = [arm.name for arm in family.arms]
        values, copies = (np.array([rates(name) for name in those]) for those in (names, family.copies))
        arms += names
        rows += list(log_ratios(values, copies, THROUGHPUT))
    return Measured(tuple(arms), np.array(rows), seconds)


def read_notes(file: Path) -> dict[tuple[str, int], float]:
    """Return (run, block) -> its seconds."""
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(f"{note['design']}-{note['way']}", note["block"]): note["seconds"] for note in found}


def compared(folder: Path, name: str, other: str = "sequential") -> dict[str, Any] | None:
    """Return the results of turns and another way for a design, or None if one has no run."""
    if not all((folder / f"{name}-{way}" / "run.json").exists() for way in ("turns", other)):
        return None
    for way in ("turns", other):
        keep(RunFolder(folder / f"{name}-{way}"), steps=way == "turns")
    notes = read_notes(folder / "blocks.jsonl")
    (turns, numbers), (rest, _) = (measured_of(RunFolder(folder / f"{name}-{way}"), notes) for way in ("turns", other))
    if not turns.seconds.size or not rest.seconds.size:
        return None
    controls = [arm for arm in turns.arms if arm.startswith("control:")]
    others = [arm for arm in turns.arms if arm not in controls]
    return {
        "design": name,
        "other": other,
        "blocks": {"turns": turns.seconds.size, other: rest.seconds.size},
        "block_s": {"turns": float(turns.seconds.mean()), other: float(rest.seconds.mean())},
        "in_turns": sum(facts.in_turns for facts in numbers.facts.values()),
        "trials": sum(sum(facts.outcomes.values()) for facts in numbers.facts.values()),
        "broken": {arm: dict(facts.reasons) for arm, facts in numbers.facts.items() if facts.reasons},
        "gain": {kind: figures.as_json(figures.gain(turns.of(arms), rest.of(arms)))
                 for kind, arms in (("copies", controls), ("arms", others)) if arms},
        "arms": [_row(arm, turns, rest, other) for arm in turns.arms],
        "lengths": lengths(RunFolder(folder / f"{name}-turns"), float(turns.seconds.mean())),
    }  # fmt: skip


def lengths(folder: RunFolder, seconds: float) -> list[str]:
    """Return lines about the best turn length and the number of steps to exclude, from a run's turns."""
    run = folder.load()
    timed = [(trial, trial.record.timing) for trial in trials_of(folder, run.plan) if trial.record]
    found = precision_parts.stacked([
        (trial.block, trial.arm, [turn.steps for turn in timing.turns], timing.steps_ns or ())
        for trial, timing in timed if timing and timing.turns
    ])  # fmt: skip
    if found is None:
        return []
    rows = [rows for _, timing in timed if timing and len(rows := _rows(timing))]
    return [*precision_parts.lines(found, seconds, run.design.turn_apart), *precision_parts.places(rows)]


def _rows(timing: Timing) -> figures.Floats:
    """Return the times of all steps of a trial's turns (turns, steps), including excluded ones.

    A shorter last turn is left out.
    """
    steps = iter(timing.steps_ns or ())
    rows = [[*(turn.apart_ns or ()), *itertools.islice(steps, turn.steps or 0)] for turn in timing.turns or ()]
    whole = len(rows[0]) if rows else 0
    return np.array([row for row in rows if len(row) == whole], dtype=np.float64)


def _row(arm: str, turns: Measured, rest: Measured, other: str) -> dict[str, Any]:
    apart = figures.difference([turns], [rest], arm)
    sides = {"turns": turns, other: rest}
    return {
        "arm": arm,
        "sd": {name: figures.deviation([side], arm) for name, side in sides.items()},
        "gain": figures.as_json(figures.gain(turns.of([arm]), rest.of([arm]))),
        "effect": {name: figures.as_json(figures.effect([side], arm)) for name, side in sides.items()},
        "turns_over_other": figures.as_json(apart),
        "agreement": figures.agreement(apart),
        "blocks_for_2_percent": {name: figures.blocks_for([side], arm, 0.02) for name, side in sides.items()},
    }  # fmt: skip


def shown(found: Mapping[str, float] | None, form: str = ".2f") -> str:
    """Format an estimate and its interval."""
    if not found:
        return "not known"
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


def lines_of(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a comparison."""
    other, block_s = part["other"], part["block_s"]
    yield f"\n{part['design']}: turns against {other}; 95 % intervals (jackknife of the log over blocks, Welch's t)"
    yield "  " + ", ".join(f"{part['blocks'][way]} blocks of {block_s[way]:.1f} s {way}" for way in block_s)
    yield f"  {part['in_turns']} of {part['trials']} trials of the run in turns took turns"
    for arm, reasons in part["broken"].items():
        yield f"  broken: {arm}: {reasons}"
    for kind, found in part["gain"].items():
        wanted = {"copies": 4, "arms": 3}[kind]
        label = {"copies": "two copies of the baseline", "arms": "the other arms, geometric mean"}[kind]
        yield f"  precision per minute, turns over {other}, {label}: {shown(found)} (wanted: {wanted})"
    yield f"  {'arm':34} {'sd turns':>8} {'sd ' + other:>13}  {'precision per minute':22} {'effect in turns':20} "\
        f"{'effect ' + other:20} {'their ratio':20}"  # fmt: skip
    for row in part["arms"]:
        sd = [f"{value:.4f}" if value is not None else "-" for value in row["sd"].values()]
        effects = [shown(found, ".3f") for found in row["effect"].values()]
        yield (
            f"  {row['arm']:34} {sd[0]:>8} {sd[1]:>13}  {shown(row['gain']):22} {effects[0]:20} {effects[1]:20} "
            f"{shown(row['turns_over_other'], '.3f'):20} {row['agreement']}"
        )
    yield "  (trials of a second see the first second of a program; --agreement compares with long ones)"
    apart = [row["arm"] for row in part["arms"] if row["agreement"] == "DISAGREE"]
    yield f"  arms that disagree by more than 3 %: {', '.join(apart) or 'none'}"
    open_ = [row["arm"] for row in part["arms"] if row["agreement"] not in ("DISAGREE", "agree")]
    yield f"  not decided: {', '.join(open_) or 'none'}"
    yield from part["lengths"]


def written(chosen: argparse.Namespace) -> dict[str, Any]:
    """Write precision.json for everything in the folder, and print its tables."""
    names = sorted({path.name.rpartition("-")[0] for path in chosen.to.glob("*/") if (path / "run.json").exists()})
    parts = [found for name in names if (found := compared(chosen.to, name))]
    document = {"schema": 1, "command": ["selfbench", *sys.argv[1:]], "parts": parts}
    write_whole(chosen.to / "precision.json", json.dumps(document, indent=1) + "\n")
    print("\n".join(line for part in parts for line in lines_of(part)) or "nothing is compared yet")
    progress(f"written to {chosen.to / 'precision.json'}; the runs lie beside it")
    return document


def _precision(chosen: argparse.Namespace) -> None:
    names = chosen.design.split(",")
    others = len(names) - (COPIES in names)
    for name in names:
        share = (_SHARE if others else 1.0) if name == COPIES else (1.0 - _SHARE * (COPIES in names)) / others
        ways = [opened(chosen, name, way) for way in ("turns", "sequential")]
        with measuring(ways):
            in_time(ways, share * chosen.minutes, chosen.to / "blocks.jsonl", even=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--precision", action="store_true", help="precision per minute, turns against one by one")
    parser.add_argument("--design", default=f"{COPIES},default", help=f"names with commas; {COPIES}: two baselines")
    parser.add_argument("--environments", default="", help="of the design only these, names with commas")
    parser.add_argument("--minutes", type=float, default=18.0, help="of measuring in all; 0: only the figures again")
    parser.add_argument("--turn", type=int, default=0, help="timed steps of a turn (0: the design's)")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--launcher", default="here", help="slurm: each block is a job")
    parser.add_argument("--node", default="", help="with --launcher slurm, the node of all jobs")
    parser.add_argument("--matrix", default=None)
    parser.add_argument("--to", type=Path, default=Path("results/precision"), help="folder of the runs and figures")


def attempted(work: Callable[[], object]) -> int:
    """Run ``work``; return 0, 130 after Ctrl-C, or the exit code of an error, with a message."""
    try:
        work()
    except KeyboardInterrupt:
        progress("interrupted: the same command goes on")
        return 130
    except EnvmatrixError as error:
        progress(f"{error}: when that is mended, the same command goes on")
        return error.exit_code
    return 0


def measure(chosen: argparse.Namespace) -> int:
    """Measure, then write the results, even if the measurement was interrupted."""
    chosen.to.mkdir(parents=True, exist_ok=True)
    status = attempted(lambda: _precision(chosen)) if chosen.minutes > 0 else 0
    written(chosen)
    return status
