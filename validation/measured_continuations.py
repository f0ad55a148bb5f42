"""Compare steady effects with those of a minute: `python -m validation.measured_continuations --budget 40m`.

A design runs twice, with continuations of `--short` and of `--long` seconds of steps. Blocks and estimates are those of
real runs. A run that lies in `--to` already is only read.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import envmatrix
from envmatrix import Result, SteadyEffect
from envmatrix.plan import steady_state_block_share
from envmatrix.runner import steady_state_runs


@contextmanager
def going_on_for(seconds: float) -> Iterator[None]:
    """Let processes go on for ``seconds`` of steps instead of the usual ones."""
    usual = {"FULL_S": steady_state_block_share.FULL_S, "MIN_S": steady_state_block_share.MIN_S}
    modules = [vars(module) for module in (steady_state_block_share, steady_state_runs)]
    for names in modules:
        names |= {"FULL_S": seconds, "MIN_S": min(seconds, usual["MIN_S"])}
    try:
        yield
    finally:
        for names in modules:
            names |= usual


def over(long: SteadyEffect, short: SteadyEffect) -> tuple[float, float, float]:
    """Return the ratio of two effects of independent runs, with its interval."""
    mean = math.log(long.ratio / short.ratio)
    below = math.hypot(math.log(long.ratio / long.low), math.log(short.high / short.ratio))
    above = math.hypot(math.log(long.high / long.ratio), math.log(short.ratio / short.low))
    return math.exp(mean), math.exp(mean - below), math.exp(mean + above)


def measured(chosen: argparse.Namespace, seconds: float) -> Result:
    """Run the design with continuations of ``seconds``, or read that run."""
    name = f"steady-{seconds:g}s"
    if (chosen.to / name / "run.json").exists():
        return envmatrix.load(chosen.to / name)
    with going_on_for(seconds):
        return envmatrix.run(
            chosen.design, budget=chosen.budget, environments=chosen.environments, matrix=chosen.matrix, name=name,
            results=chosen.to, progress=print,
        )  # fmt: skip


def lines_of(short: Result, long: Result) -> Iterator[str]:
    """Yield a line for each environment with both effects: both with intervals, their ratio, and whether they agree."""
    yield f"{'environment':34} {'short':>30} {'long':>30} {'long over short':>24}"
    for arm, one in short.steady_effects.items():
        other = long.steady_effects.get(arm)
        if other is None:
            yield f"{arm:34} only the short run has its effect"
            continue
        ratio, low, high = over(other, one)
        sides = (
            f"{at.ratio:.3f} [{at.low:.3f}, {at.high:.3f}] {at.since_s:.0f}-{at.until_s:.0f} s" for at in (one, other)
        )
        told = " ".join(f"{side:>30}" for side in sides)
        verdict = "agree" if low <= 1.0 <= high else "DISAGREE"
        yield f"{arm:34} {told} {f'{ratio:.3f} [{low:.3f}, {high:.3f}]':>24} {verdict}"


def _shown(one: SteadyEffect) -> str:
    return f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}] {one.since_s:.0f}-{one.until_s:.0f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--design", default="default")
    parser.add_argument("--matrix", type=Path)
    parser.add_argument("--environments", help="only these: a,b")
    parser.add_argument("--budget", default="40m", help="of each of the two runs")
    parser.add_argument("--short", type=float, default=steady_state_block_share.FULL_S, help="seconds of steps")
    parser.add_argument("--long", type=float, default=60.0, help="seconds of steps")
    parser.add_argument("--to", type=Path, default=Path("results"), help="the folder of both runs")
    chosen = parser.parse_args(arguments)
    short, long = measured(chosen, chosen.short), measured(chosen, chosen.long)
    print("\n".join(lines_of(short, long)))


if __name__ == "__main__":
    main()
