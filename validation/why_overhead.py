"""Cost of the counters: pairs of processes that run the same tiny steps with and without them, in random order."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from envmatrix.stats.maxt import student_quantile
from envmatrix.system import project
from envmatrix.system.atomic_files import write_whole
from validation.measured_parts import host_here

LEVEL = 0.95
#: How to run bench/: as every trial does, and with the counters of the thread replaced by none.
WAYS = {
    "with": "import sys; from bench.__main__ import main; sys.exit(main(sys.argv[1:]))",
    "without": "import sys; from bench import step_thread; step_thread.attempt_read = lambda: None\n"
    "from bench.__main__ import main; sys.exit(main(sys.argv[1:]))",
}
#: A tiny step: the shorter it is, the more its counters would cost.
WORK = ("run", "--model", "mlp", "--batch-size", "8", "--warmup-steps", "20", "--eval-samples", "8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this check."""
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (injected, overhead)")
    parser.add_argument("--steps", type=int, default=2000, help="timed steps of each process (overhead)")
    parser.add_argument("--to", type=Path, default=Path("validation/results/overhead"), help="folder (overhead)")


def table(chosen: argparse.Namespace) -> Iterator[str]:
    """Measure block after block, and yield the ratio of the times with and without counters with its interval."""
    chance, blocks = random.Random(1), []
    for number in range(chosen.blocks):
        order = chance.sample(sorted(WAYS), len(WAYS))
        blocks.append({"order": order, **{way: _seconds(way, chosen) for way in order}})
        found = ratio(blocks)
        document = {"host": host_here(), "steps": chosen.steps, "work": WORK, "ratio": found, "blocks": blocks}
        chosen.to.mkdir(parents=True, exist_ok=True)
        write_whole(chosen.to / "overhead.json", json.dumps(document, indent=1) + "\n")
        print(f"block {number + 1} of {chosen.blocks}: {_shown(found)}", file=sys.stderr)
    yield f"time of {chosen.steps} steps with counters / without: {_shown(ratio(blocks))}, {len(blocks)} blocks"


def ratio(blocks: Sequence[Mapping[str, object]]) -> dict[str, float | None]:
    """Return the geometric mean of the blocks' ratios with its 95 % interval; no ends with fewer than two blocks."""
    logs = np.log([float(str(block["with"])) / float(str(block["without"])) for block in blocks])
    if len(logs) < 2:
        return {"mean": float(np.exp(logs.mean())), "low": None, "high": None}
    reach = student_quantile(len(logs), (1 + LEVEL) / 2) * logs.std(ddof=1) / np.sqrt(len(logs))
    low, mean, high = np.exp(logs.mean() + reach * np.array([-1.0, 0.0, 1.0])).tolist()
    return {"mean": mean, "low": low, "high": high}


def _shown(found: Mapping[str, float | None]) -> str:
    ends = "" if found["low"] is None else f" [{found['low']:.4f}, {found['high']:.4f}]"
    return f"{found['mean']:.4f}{ends}"


def _seconds(way: str, chosen: argparse.Namespace) -> float:
    """Run a process and return the seconds of its timed steps."""
    argv = [chosen.python, "-c", WAYS[way], *WORK, "--steps", str(chosen.steps)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that wait for each other would only add noise
    done = subprocess.run(
        argv, cwd=project.bench_folder().parent, env=alone, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{way} counters: {done.stderr.strip() or 'it failed'}\n-> --python: a Python with torch")
    record = json.loads(done.stdout)
    if (record["step_thread"] is None) != (way == "without"):
        raise SystemExit(f"{way} counters: the record says otherwise")
    return float(record["metrics"]["training_s"])
