"""Cost of the counters: pairs of turns of one process, one with and one without them, in random order."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.system import resource_paths
from envmatrix.system.atomic_files import write_whole
from validation.measured_parts import host_here

LEVEL = 0.95
#: The first steps of a process are faster or slower than later ones: so many do not count.
WARMUP_STEPS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this check."""
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (injected, overhead)")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each turn (overhead)")
    parser.add_argument("--model", default="mlp", help="the smaller, the more the counters cost (overhead)")
    parser.add_argument("--to", type=Path, default=Path("validation/results/overhead"), help="folder (overhead)")


def table(chosen: argparse.Namespace) -> Iterator[str]:
    """Measure pairs of turns of one process, and yield the ratio of their times with its interval."""
    chance = random.Random(1)
    order = "".join(chance.choice(("01", "10")) for _ in range(chosen.blocks))
    found = ratio(blocks := pairs(order, _turns_s(order, chosen)))
    document = {
        "host": host_here(), "model": chosen.model, "steps": chosen.steps, "ratio": found, "blocks": blocks,
    }  # fmt: skip
    chosen.to.mkdir(parents=True, exist_ok=True)
    write_whole(chosen.to / "overhead.json", json.dumps(document, indent=1) + "\n")
    yield f"time of {chosen.steps} steps with counters / without: {_shown(found)}, {len(blocks)} pairs"


def pairs(order: str, turns_s: Sequence[float]) -> list[dict[str, float]]:
    """Return each pair of turns as ``with`` and ``without``; ``order`` has a 1 for each turn with counters."""
    names = [{"0": "without", "1": "with"}[way] for way in order]
    named = list(zip(names, turns_s, strict=True))
    return [dict(named[first : first + 2]) for first in range(0, len(named), 2)]


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


def _turns_s(order: str, chosen: argparse.Namespace) -> list[float]:
    """Run one process and return the seconds of the timed steps of each turn."""
    words = ["run", "--model", chosen.model, "--warmup-steps", str(WARMUP_STEPS), "--gate", "none"]
    words += ["--steps", str(chosen.steps * len(order))]
    argv = [chosen.python, "-m", "validation.counted_turns", str(chosen.steps), order, *words]
    done = subprocess.run(argv, cwd=resource_paths.bench_folder().parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr.strip() or 'it failed'}\n-> --python: a Python with torch")
    steps_ns = json.loads(done.stdout)["timing"]["steps_ns"]
    return [sum(steps_ns[first : first + chosen.steps]) / 1e9 for first in range(0, len(steps_ns), chosen.steps)]
