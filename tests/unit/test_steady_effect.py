"""Effects in the steady state: the blocks' effect times its change in processes that went on, and what reports say."""

import csv
import io
import json
import math
import random
from dataclasses import replace

import pytest
from rich.console import Console

from bench.early_and_late_steps import program_second_half, second_half
from envmatrix.matrix.model import Workload
from envmatrix.report.figures.forest import NARROW, forest
from envmatrix.report.formats.exports import effects_csv
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.formatting import format_bounds
from envmatrix.report.headline import steady_note
from envmatrix.report.report_data import summarise, summarise_measurements
from envmatrix.report.tables.columns import columns_of
from envmatrix.results import RunFolder
from envmatrix.stats.measurements import fold_trials
from tests.committed import RESULTS
from tests.synthetic import Machine, make_plan, make_run, make_trials
from tests.unit.test_continuations import continued_after_trials

NAMES = ("baseline", "fast", "slow", "same")
SPEED = {"fast": 1.25, "slow": 0.8}
OWN = {"name": "cnn", "command": ["python", "x.py"], "metric": {"steps": "^step"}}


def summary_of(change, *, speed=None, blocks=(4, 5), noise=0.0, trial_noise=0.01, changed=lambda trial: trial):
    """Return the summary of a run in which environments ``change`` in the blocks that went on."""
    plan, chance = make_plan(NAMES), random.Random(4)
    trials = (
        changed(
            replace(
                continued_after_trials(trial, 9, change.get(trial.environment, 1.0), chance.gauss(0, noise)),
                later_s=30.0,
            )
        )
        if trial.block in blocks
        else trial
        for trial in make_trials(plan, Machine(speed or SPEED, noise=trial_noise), 8)
    )
    return summarise_measurements(make_run(plan), fold_trials(plan, trials))


def rows_of(summary):
    return {row.arm.environment: row for group in summary.groups for row in group.all_rows}


def test_a_steady_effect_is_that_of_the_blocks_times_its_change():
    rows = rows_of(summary_of({"fast": 0.9, "slow": 1.1}))
    for name, change in (("fast", 0.9), ("slow", 1.1), ("same", 1.0), ("control", 1.0)):
        effect, steady = rows[name].effect, rows[name].steady
        assert steady.ratio == pytest.approx(effect.ratio * change, rel=1e-6)
        assert steady.change == pytest.approx(change, rel=1e-6)
        assert steady.low < steady.ratio < steady.high
        assert (steady.groups, steady.changes) == (2, False)
    assert rows["baseline"].steady is None


def test_its_interval_holds_the_variance_of_the_change_too():
    quiet, noisy = (rows_of(summary_of({}, noise=noise))["fast"] for noise in (0.0, 0.05))
    first = math.log(quiet.effect.high / quiet.effect.low)
    assert math.log(quiet.steady.high / quiet.steady.low) < 2 * first
    assert math.log(noisy.steady.high / noisy.steady.low) > 3 * first


def test_without_noise_in_the_change_more_blocks_that_went_on_change_nothing():
    two, four = (rows_of(summary_of({"fast": 0.9}, blocks=blocks))["fast"].steady for blocks in ((4, 5), (4, 5, 6, 7)))
    assert four.ratio == pytest.approx(two.ratio, rel=1e-6)
    assert (two.groups, four.groups) == (2, 4)


def test_one_block_that_went_on_gives_no_steady_effect():
    summary = summary_of({"fast": 0.9}, blocks=(4,))
    assert not any(row.steady for row in rows_of(summary).values())
    assert "times as fast as baseline (95 % CI" in summary.groups[0].headline
    assert "seconds" not in to_markdown(summary).partition("## Start")[0].replace("first seconds", "")


def test_the_plot_has_the_steady_effect_below_that_of_the_first_steps():
    (group,) = summary_of({"fast": 0.9}).groups
    (steady,) = (row.steady for row in group.rows if row.arm.environment == "fast")
    wide, narrow, before = forest(group), forest(group, layout=NARROW), forest(summary_of({}, blocks=()).groups[0])
    figures = f"{steady.ratio:.2f} ({format_bounds(steady.low, steady.high)})"
    assert figures in wide
    assert figures not in narrow, "it has no room for them"
    for drawn in (wide, narrow):
        assert drawn.count("<circle") == 4, "with the control"
        assert f"first steps, and below them {steady.time_range_text}<" in drawn
    assert "<circle" not in before
    assert "below" not in before


def test_plot_and_table_name_the_same_seconds_though_each_environment_has_its_own():
    (group,) = summary_of({"fast": 0.9}).groups
    rows = [replace(row, steady=row.steady and replace(row.steady, since_s=70.0 + number, until_s=90.0 + number))
            for number, row in enumerate(group.rows)]  # fmt: skip
    mixed = replace(group, rows=tuple(rows))
    (title,) = (column.heading(mixed) for column in columns_of(mixed, "terminal") if column.name == "steady")
    seconds = next(row.steady.time_range_text for row in rows if row.steady)
    assert seconds in title
    assert f"below them {seconds}<" in forest(mixed)


def test_notes_say_what_is_compared_later_and_whose_reference_is_not_paused():
    summary = summarise(RunFolder(RESULTS / "reference-steady"))
    limits = summary.groups[0].limits
    assert "Seconds 6 to 11 were measured in 7 of the blocks." in limits
    runs = '* For jemalloc, the reference is "baseline alone" (last row).'
    assert f"{runs} They do not take turns with the others, because pauses would change their speed." in limits
    text = to_markdown(summary)
    assert [name for name in summary.run.environments if f"{name} \\*" in text] == ["jemalloc"]
    assert "| baseline alone |" in text
    assert "0.84 (0.78 to 0.90, outliers)" in text, "book: why it is not called slower"
    assert "0.83 (0.75 to 0.93, slower)" in text


def test_a_cause_of_several_environments_is_told_once_and_the_fewest_blocks_count():
    summary, text = summarise(RunFolder(RESULTS / "reference-steady")), io.StringIO()
    print_summary(summary, Console(file=text, width=300))
    assert text.getvalue().count("confirmed by glibc-tuned") == 1
    assert text.getvalue().count("cause: as for mimalloc") == 1
    effects = [row.steady for row in summary.groups[0].rows][:2]
    told = steady_note({"a": replace(effects[0], groups=3), "b": replace(effects[1], groups=5)}, [], {}, "baseline")
    assert told.startswith("Seconds 6 to 11 were measured in 3 of the blocks.")


def test_a_process_that_ended_before_leaves_the_first_steps_of_its_environment():
    def died(trial):
        if trial.environment != "slow" or trial.block != 5:
            return trial
        timing = {key: value for key, value in trial.document["timing"].items() if key != "later"}
        return replace(trial, document={**trial.document, "timing": timing}, later_failed="was killed by SIGKILL")

    summary = summary_of({"fast": 0.9}, changed=died)
    rows = rows_of(summary)
    assert rows["slow"].steady is None
    assert rows["slow"].effect.verdict == "slower", "its trial stands"
    assert rows["slow"].outcomes == {"ok": 8}
    assert rows["fast"].steady.groups == 2
    assert "slow ended before: it was killed by SIGKILL." in to_markdown(summary)


@pytest.mark.parametrize(
    ("change", "noise", "headline"),
    [
        (0.96, 0.005, "fast is 1.20 times as fast as baseline in seconds 5 to 10 of its steps (95 % CI "),
        (
            0.80,
            0.005,
            "In seconds 5 to 10 of each process, it is about as fast as baseline: 1.00, 95 % CI 0.98 to 1.02.",
        ),
        (
            0.82,
            0.05,
            " blocks). In seconds 5 to 10 of each process, no gain is shown: ",
        ),
    ],
)
def test_the_headline_is_the_steady_effect_with_the_first_steps_next_to_it(change, noise, headline):
    summary = summary_of({"fast": change}, noise=noise)
    told = summary.groups[0].headline
    assert headline in told
    assert ("first steps: 1.25" in told) is (change == 0.96)
    text = io.StringIO()
    print_summary(summary, Console(file=text, width=200))
    assert told.split("(")[0] in " ".join(text.getvalue().split())


def test_what_is_slower_later_is_not_recommended_and_the_headline_says_why():
    summary = summary_of({"fast": 0.70}, noise=0.005)
    (group,) = summary.groups
    assert (group.best, rows_of(summary)["fast"].effect.verdict) == (None, "faster")
    assert group.headline.startswith(
        "No environment is recommended over baseline: fast (1.25, then 0.88) is faster in the first steps, but slower "
        "in seconds 5 to "
    )
    assert json.loads(json.dumps(summary_to_json(summary)))["best"][0]["environment"] is None
    line = next(one for one in to_markdown(summary).splitlines() if one.startswith("| fast "))
    assert ", slower)" in line, "the column of later steps has its own verdict"


def test_the_environment_that_lasts_is_recommended_before_the_one_that_is_faster_at_first():
    speed = {"fast": 1.25, "slow": 1.15, "same": 1.0}
    summary = summary_of({"fast": 0.85, "slow": 0.99}, speed=speed, noise=0.003)
    (group,) = summary.groups
    assert {name: rows_of(summary)[name].steady.verdict for name in speed} == {
        "fast": "faster", "slow": "faster", "same": "same"
    }  # fmt: skip
    assert (group.best.arm.environment, group.best_set) == ("slow", ("slow",))
    assert group.headline.startswith("slow is 1.14 times as fast as baseline in seconds 5 to 10 of its steps")
    assert group.choice.gain == pytest.approx(1.15 * 0.99, abs=0.02)


def test_one_that_gets_fast_only_later_is_recommended_too():
    summary = summary_of({"same": 1.3}, speed={}, noise=0.005)
    (group,) = summary.groups
    assert (group.best.arm.environment, group.best.effect.verdict) == ("same", "same")
    assert group.headline.startswith("same is 1.31 times as fast as baseline in seconds 5 to 10 of its steps")


def test_the_second_half_of_all_steps_is_that_of_their_time():
    slow, fast = [3 * 10**9] * 2, [10**9] * 6
    found = second_half([([10**9], slow), ([10**9], fast)], 2e9)
    assert found == {"watched_ns": 14 * 10**9, "trial_step_ns": 2e9, "late_step_ns": 1e9, "halves_step_ns": [1e9, 1e9]}
    assert second_half([([], [4, 1, 1, 2])], 2.0)["halves_step_ns"] == [1.0, 2.0]
    assert second_half([], 2.0, 7)["late_step_ns"] is None


def test_a_program_of_ones_own_has_its_second_half_in_its_trial_if_it_is_long_enough():
    steps = [10**9] * 6 + [2 * 10**9] * 3
    found = program_second_half([([10**8], steps)])
    assert (found["trial_step_ns"], found["late_step_ns"]) == (pytest.approx(12e9 / 9), 2e9)
    assert program_second_half([([10**8], steps[:3])]) == {"watched_ns": 31 * 10**8}
    assert program_second_half([]) == {"watched_ns": 0}


def test_a_program_of_ones_own_reports_its_second_half_next_to_all_its_steps():
    plan, own = make_plan(NAMES), Workload.model_validate(OWN)

    def trials(watched_s):
        for trial in make_trials(plan, Machine(SPEED, noise=0.01), 8):
            later = {"watched_ns": round(1e9 * watched_s), "trial_step_ns": 1.0}
            later |= {"late_step_ns": 1.05 if trial.environment == "fast" else 1.0, "halves_step_ns": [1.0, 1.0]}
            later = later if watched_s >= 10 else {"watched_ns": later["watched_ns"]}
            document = {**trial.document, "timing": {"later": later}}
            document["metrics"] = {"value": document["metrics"]["samples_per_s"]}
            yield replace(trial, document=document)

    long, short = (
        summarise_measurements(make_run(plan, workloads={"cnn": own}), fold_trials(plan, trials(seconds)))
        for seconds in (20.0, 5.0)
    )
    assert "in seconds 10 to 20 of its steps (95 % CI" in long.groups[0].headline
    assert "; all steps: 1.2" in long.groups[0].headline
    assert rows_of(long)["fast"].steady.groups == 8
    assert "First seconds: each trial has 5 s of steps." in to_markdown(short)
    assert not any(row.steady for row in rows_of(short).values())


def test_an_effect_that_still_changes_is_named():
    def slows_down(trial):
        timing = trial.document["timing"]
        first, second = timing["later"]["halves_step_ns"]
        factor = 1.2 if trial.environment == "fast" else 1.0
        timing = {**timing, "later": {**timing["later"], "halves_step_ns": [first, second * factor]}}
        return replace(trial, document={**trial.document, "timing": timing})

    summary = summary_of({}, changed=slows_down, noise=0.002)
    rows = rows_of(summary)
    assert rows["fast"].steady.changes
    assert not rows["same"].steady.changes
    assert "The effect of fast over baseline still changed" in to_markdown(summary)


def test_files_for_programs_have_both_effects():
    summary = summary_of({"fast": 0.9}, noise=0.01)
    document = json.loads(json.dumps(summary_to_json(summary), allow_nan=False))
    arm = next(one for one in document["arms"] if one["environment"] == "fast")
    assert arm["ratio"] == pytest.approx(1.25, abs=0.03)
    assert arm["steady"]["ratio"] == pytest.approx(1.25 * 0.9, abs=0.04)
    assert document["best"][0]["steady"] == arm["steady"]
    lines = list(csv.DictReader(io.StringIO(effects_csv(summary))))
    line = next(one for one in lines if one["environment"] == "fast" and one["primary"] == "True")
    assert float(line["steady_ratio"]) == arm["steady"]["ratio"]
    assert float(line["steady_low"]) < float(line["steady_ratio"]) < float(line["steady_high"])
    assert {one["steady_ratio"] for one in lines if one["primary"] == "False"} == {""}
