"""Measure envmatrix itself: `nox -s selfbench`. Each line has a measure, its result and the promised limit."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from envmatrix.engines.catalog import find_engine
from envmatrix.matrix.parse import parse
from envmatrix.plan import Plan, make_arms
from envmatrix.search.answer import find_expected_best
from envmatrix.search.next_trials import Batch, Budget, Search
from envmatrix.search.step_results import Step
from envmatrix.trials.execution import make_job, run_trial
from envmatrix.trials.experiment_setup import create_experiment, find_design
from envmatrix.trials.new_run_options import NewRun
from tests.synthetic import Machine, make_plan, make_trials, write_run
from validation import agreement, measured_parts, precision, simulated_tuning, tuned, verdicts

Line = tuple[str, float, float, str]
MATRIX = """
version: 1
factors:
  torch: {"2.13.0": {requirements: [torch==2.13.0, torchvision==0.28.0, numpy], index: "https://download.pytorch.org/whl/cpu"}}
environments: {baseline: {}}
workloads: {tiny: {model: fashion-cnn, steps: 2, warmup_steps: 0, eval_samples: 0}}
designs: {tiny: {workloads: tiny, schedule: sequential}}
"""


def said(argv: list[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def help_time() -> Iterator[Line]:
    argv = [sys.executable, "-m", "envmatrix", "--help"]
    yield "envmatrix --help, median of 15", statistics.median(timed(lambda: said(argv)) for _ in range(15)), 0.3, "s"


def planning() -> Iterator[Line]:
    plan = Plan("d", make_arms(("baseline", *"abcdefgh"), ("w",), ("local",), "baseline"), 1, 6, 10_000, 0.1, 0.1, 1.0)
    yield "planning 100,000 trials", timed(lambda: sum(len(block) for block in plan.blocks())), 2.0, "s"


def long_search(trials: int, sizes: tuple[int, ...]) -> tuple[Search, list[Batch]]:
    """Return the search of a simulated world, and measured blocks of twelve cells each."""
    there = simulated_tuning.world(1, 0.03, sizes)
    chance = np.random.default_rng(1)
    blocks = trials // 14
    rows = chance.integers(0, len(there.space.codes), (blocks, 12))
    scores = np.vstack([np.zeros((2, blocks)), there.gains[rows].T]) + chance.normal(0, 0.03, (14, blocks))
    batches = [
        Batch("screen", tuple(cells.tolist()), column[:, None], np.zeros((14, 1), np.int64))
        for cells, column in zip(rows, scores.T, strict=True)
    ]
    return Search(there.space), batches


def proposing() -> Iterator[Line]:
    """Yield the time and memory that a search with many trials needs to propose its next step."""
    search, batches = long_search(10_000, simulated_tuning.SIZES)
    assert search.columns.size  # they are computed once per search
    assert search.space.row_of(search.space.codes[0]) == 0
    known = f"after 10,000 trials, {len(search.space.codes):,} cells"
    for phase, budget in ("screen", Budget(20_000, 10_000)), ("race", Budget(16_000, 6_000)):
        tracemalloc.start()
        proposal = search.next_step(batches, budget)
        mib = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        assert proposal
        assert proposal.phase == phase
        seconds = timed(lambda budget=budget: search.next_step(batches, budget))  # type: ignore[misc]
        yield f"a step of tune ({phase}) {known}", seconds, 1.0, "s"
        yield f"a step of tune ({phase}) {known}, memory", mib, 150.0, "MiB"
    steps = [Step(batch, {}, (), (), None) for batch in batches]
    yield f"what tune says between steps {known}", timed(lambda: find_expected_best(search, steps)), 1.0, "s"


def reporting(trials: int) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as scratch:
        names = ("baseline", *(f"env-{number}" for number in range(8)))
        plan = make_plan(names, max_blocks=trials // 10)
        folder = write_run(Path(scratch) / "run", plan, Machine(speed={}), 0)
        with folder.trials_file.open("w") as file:  # like `append`, but without fsync for each trial
            for trial in make_trials(plan, Machine(speed={}), trials // len(plan.arms)):
                file.write(trial.line() + "\n")
        code = (
            "import resource, sys, time; from pathlib import Path; b = time.perf_counter()\n"
            "from envmatrix.report.write import write_reports; from envmatrix.results import RunFolder\n"
            "write_reports(RunFolder(Path(sys.argv[1])))\n"
            "print(time.perf_counter() - b, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
        )
        argv = [sys.executable, "-c", code, str(folder.path)]
        seconds, mib = map(float, subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())
    yield f"report over {trials:,} trials", seconds, 10.0, "s"
    yield f"report over {trials:,} trials, peak memory", mib, 500.0, "MiB"


def trial_overhead(pairs: int, engine: str, promised: float) -> Iterator[Line]:
    """Time trials of ``engine`` and the venv's bare process alternately; yield the overhead."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "matrix.yaml"
        file.write_text(MATRIX)
        matrix = parse(MATRIX, file)
        engines = tuple(dict.fromkeys(("local", engine)))
        new_run = NewRun(Path(scratch) / "results")
        experiment = create_experiment(matrix, find_design(matrix, "tiny"), engines, new_run)
        slots = {slot.arm.engine: slot for slot in experiment.plan.block(0) if slot.arm.environment == "baseline"}
        differences = []
        for _ in range(pairs):
            began = time.perf_counter()
            trial = run_trial(experiment, slots[engine])
            experiment.folder.append(trial)
            with_host = time.perf_counter() - began
            assert trial.outcome == "ok", trial.reason
            work = Path(scratch) / "work"
            work.mkdir()
            job = make_job(experiment, slots["local"], work)
            began = time.perf_counter()
            subprocess.run(job.argv, env=dict(job.env), cwd=work, check=True, stderr=subprocess.DEVNULL)
            alone = time.perf_counter() - began
            shutil.rmtree(work)
            differences.append(with_host - alone)
    name = f"a {engine} trial beyond the bare process, median of {pairs} pairs"
    yield name, statistics.median(differences), promised, "s"


def containers(pairs: int) -> Iterator[Line]:
    """Measure the installed container engines; missing images are built first and not timed."""
    if find_engine("docker").unavailable() is None:
        yield from trial_overhead(pairs, "docker", 0.3)
        argv = [sys.executable, "-m", "envmatrix", "build", "--engine", "docker"]
        said([*argv, "baseline"])
        yield "a Docker build with nothing to do", timed(lambda: said([*argv, "baseline"])), 2.0, "s"
        names = ["intel-omp", "tcmalloc", "jemalloc", "mimalloc", "glibc-tuned"]
        yield "five further named Docker images", timed(lambda: said([*argv, *names])), 60.0, "s"
    if find_engine("apptainer").unavailable() is None:
        yield from trial_overhead(pairs, "apptainer", 1.0)
        argv = [sys.executable, "-m", "envmatrix", "build", "--engine", "apptainer"]
        said([*argv, "baseline"])
        yield "a further named SIF", timed(lambda: said([*argv, "intel-omp"])), 15.0, "s"


def folder_bytes(path: Path) -> int:
    """Return the disk usage of a folder in bytes; hard links count once."""
    seen: dict[tuple[int, int], int] = {}
    for file in path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            status = file.stat()
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def second_environment() -> Iterator[Line]:
    """Build one image in an empty cache, then a further venv of the same packages."""
    with tempfile.TemporaryDirectory() as scratch:
        level = MATRIX.split("torch: {")[1].split("}}")[0].removeprefix('"2.13.0": ') + "}"
        further = level.replace("numpy", "numpy, six")
        text = MATRIX.replace(level, f"{level}, again: {further}")
        (Path(scratch) / "matrix.yaml").write_text(text.replace("baseline: {}", "baseline: {}, second: {torch: again}"))
        env = {**os.environ, "ENVMATRIX_CACHE": f"{scratch}/cache"}
        argv = [sys.executable, "-m", "envmatrix", "build"]

        def build(name: str) -> tuple[float, int, str]:
            began = time.perf_counter()
            done = subprocess.run([*argv, name], env=env, cwd=scratch, check=True, capture_output=True, text=True)
            return time.perf_counter() - began, folder_bytes(Path(scratch) / "cache"), done.stderr

        _, first, _ = build("baseline")
        _, both, said_of_second = build("second")
        again, _, _ = build("second")
    yield "disk of a second venv, share of the first", 100 * (both - first) / first, 10.0, "%"
    yield "downloads for it beyond what it lacks", float(said_of_second.count("torch==")), 0.0, "wheels of torch"
    yield "a build with nothing to do", again, 2.0, "s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--containers", action="store_true", help="Docker and Apptainer too, where they are")
    parser.add_argument("--json", action="store_true")
    precision.add_arguments(parser)
    agreement.add_arguments(parser)
    measured_parts.add_arguments(parser)
    verdicts.add_arguments(parser)
    tuned.add_arguments(parser)
    chosen = parser.parse_args()
    if chosen.precision:
        return precision.measure(chosen)
    if chosen.agreement:
        return agreement.measure(chosen)
    if chosen.tune:
        return tuned.measure(chosen)
    if chosen.alarms or chosen.decides:
        return verdicts.measure(chosen)
    measures = [help_time(), planning(), proposing(), trial_overhead(chosen.pairs, "local", 0.1), second_environment()]
    measures += [reporting(chosen.trials)]
    measures += [containers(chosen.pairs)] if chosen.containers else []
    lines = [line for measure in measures for line in measure]
    if chosen.json:
        print(json.dumps([dict(zip(("measure", "found", "promised", "unit"), line, strict=True)) for line in lines]))
    else:
        for name, found, promised, unit in lines:
            print(f"{'ok  ' if found <= promised else 'MISS'} {name}: {found:.3g} {unit} (promised: {promised:g})")
    return any(found > promised for _, found, promised, _ in lines)


if __name__ == "__main__":
    sys.exit(main())
