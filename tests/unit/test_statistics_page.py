"""The constants named on the method pages are those in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from envmatrix.block import available_memory
from envmatrix.matrix.model import Design
from envmatrix.stats import best_environment
from envmatrix.stats.attribution import contrasts
from envmatrix.stats.effects import (
    ALL_ANALYSES_LEVEL,
    CONFIDENCE,
    FIRST_ANALYSIS_SHARE,
    LEVEL,
    ONE_SIDED_SHARE,
    level_of_one_sided_bounds,
)
from envmatrix.stats.inference import standard_errors
from envmatrix.stats.inference.change_points import FALSE_ALARM_RATE, MIN_RUNS, MIN_SEGMENT_LENGTH, fewest_runs
from envmatrix.stats.inference.maxt import DRAWS
from envmatrix.stats.inference.welch import FEWEST_RUNS
from envmatrix.stats.quality import equal_work, slow_trials
from envmatrix.stats.steady_state import detection
from envmatrix.stats.stopping import racing
from envmatrix.stats.stopping.precision import CONFIRMATIONS
from envmatrix.trials import interleaving_eligibility

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    name: " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split())
    for name in ("statistics", "error-control", "noise", "steady-state", "choosing", "comparing", "interleaving")
}
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
MINUTES = standard_errors.LEAST_PHASES * standard_errors.PHASE_S / 60


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("statistics", f"drawn ({DRAWS:,} draws, fixed seed) for the actual number of blocks and of comparisons"),
        ("statistics", f"p is below {1 - CONFIDENCE:.0%}".replace("%", " %")),
        ("error-control", f"{NUMBERS[CONFIRMATIONS]} blocks in a row must find the intervals narrow enough"),
        (
            "error-control",
            f"intervals of effects are computed at {100 * ALL_ANALYSES_LEVEL:.1f} %, all looks at a run together",
        ),
        (
            "error-control",
            f"has {NUMBERS[round(5 * FIRST_ANALYSIS_SHARE)]} fifths of it: it is computed at {100 * LEVEL:.2f} %",
        ),
        (
            "error-control",
            f"that is {100 * (1 - (1 - LEVEL) * ONE_SIDED_SHARE):.2f} % for each bound, which makes them the ends of a "
            f"{100 * level_of_one_sided_bounds(LEVEL):.2f} % interval",
        ),
        ("error-control", f"1 - (n1/n)^2 / {1 / (1 - FIRST_ANALYSIS_SHARE):.0f}"),
        (
            "statistics",
            f"loss: {100 * equal_work.LOSS_RELATIVE:.0f} % + {equal_work.LOSS_ABSOLUTE}; "
            f"accuracy: {equal_work.ACCURACY_ABSOLUTE}",
        ),
        ("noise", f"**Below {slow_trials.LEAST_BLOCKS} blocks** a comparison with an arm that has slow trials"),
        ("noise", f"in all but {100 * slow_trials.ERROR:.1f} % of cases"),
        ("noise", f"whose period is at least twice {standard_errors.PHASE_S:.0f} s"),
        (
            "noise",
            f"From {standard_errors.LEAST_PHASES} times {standard_errors.PHASE_S:.0f} s ({MINUTES:.0f} minutes) on",
        ),
        (
            "noise",
            f"an F test at {100 * standard_errors.PROMINENCE_ERROR:.0f} % of the slowest B ({standard_errors._FEWEST} "
            "at least), 2 B",
        ),
        (
            "noise",
            f"up to {standard_errors._MISS_SHARES[2][1]}, below {standard_errors._MISS_SHARES[1][0]:.0f} minutes "
            f"up to {standard_errors._MISS_SHARES[1][1]}",
        ),
        (
            "noise",
            f"and up to {standard_errors._MISS_SHARES[0][1]} below {standard_errors._MISS_SHARES[0][0]:.0f} minutes",
        ),
        (
            "steady-state",
            f"Levels alike to {100 * detection.TOLERANCE:.0f} % are one, and the last one must have lasted a third",
        ),
        ("steady-state", f"{detection._PENALTY:.0f} log n times"),
        ("choosing", f"in {best_environment._HALVES} random halves of the blocks"),
        ("choosing", f"(at most {racing._MAX_DECISIONS} looks)"),
        (
            "choosing",
            f"The first look has {100 * (1 - racing._SHARE_RATIO):.0f} % of the error, each later one "
            f"{racing._SHARE_RATIO:.1f} times",
        ),
        (
            "choosing",
            f"({100 * racing.EARLY_VERDICT_ERROR:.0f} % over all looks) is kept for arms that stop early",
        ),
        (
            "choosing",
            f"intervals are computed at {100 * (1 - (1 - LEVEL) * racing.FINAL_ERROR_SHARE):.1f} % at the first look",
        ),
        (
            "choosing",
            f"a one-sided paired t test at {100 * racing.ELIMINATION_ERROR * (1 - racing.BEST_SET_SHARE):.0f} % x "
            f"share of the look / number of arms",
        ),
        (
            "choosing",
            f"({contrasts._DRAWS:,} draws; Bonferroni for more than {contrasts.MOST_DRAWN} contrasts or "
            f"{contrasts._MOST_BLOCKS_DRAWN} blocks)",
        ),
        ("comparing", f"each lasting at least {MIN_SEGMENT_LENGTH} runs"),
        ("comparing", f"better than two fit {100 * (1 - FALSE_ALARM_RATE):.1f} % of other orders"),
        (
            "comparing",
            f"Below {MIN_RUNS} runs, or {fewest_runs(FALSE_ALARM_RATE / 10)} for ten series, none is looked for",
        ),
        ("comparing", f"Below {NUMBERS[FEWEST_RUNS]} runs there is no interval"),
        ("interleaving", f"`turn_apart`, {Design.model_fields['turn_apart'].default}"),
        (
            "interleaving",
            f"({interleaving_eligibility.DEFAULT_PROCESS_BYTES // 2**30} GiB if it is not known yet) must fit into "
            f"{NUMBERS[round(5 * available_memory._MEMORY_SHARE)]} fifths of the free memory",
        ),
    ],
)
def test_a_constant_that_a_page_names_is_the_one_of_the_code(page, said):
    assert said in PAGES[page]
