"""Comparison of environments and runs, as for a gate in CI."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from envmatrix.errors import ExitCode, InputError
from envmatrix.matrix.model import Workload
from envmatrix.results import RunFolder
from envmatrix.stats.comparisons.between_runs import comparability_problems, compare_runs, is_same_setup
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.comparisons.result import blocks_needed, status_of
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.welch import mean_of_logs, quotient
from envmatrix.stats.measurements import fold_trials, read_measurements
from tests.synthetic import HOST, Machine, make_plan, make_run, make_trials, slowed, write_run
from validation.simulated_runs import rerun
from validation.simulated_runs import stored as stored_runs
from validation.simulated_sides import one_skewed, reference_fails, verdicts

PLAN = make_plan(("torch-2.6", "torch-2.13"))


def made(tmp_path, name, speed, blocks=10, seed=1, noise=0.01, **more):
    return write_run(tmp_path / name, PLAN, Machine(speed, noise=noise), blocks, seed, **more)


def between(folder, allowed=0.03, old="torch-2.6", new="torch-2.13"):
    run = folder.load()
    return compare_environments(run, read_measurements(folder, run.plan), old, new, allowed)


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (0.8, 0.951, "slower"), (0.953, 1.1, "not slower"), (0.951, 0.99, "cannot say"), (None, None, "cannot say"),
    ],
)  # fmt: skip
def test_only_an_interval_wholly_beyond_what_is_allowed_is_slower(low, high, status):
    assert status_of(low, high, 0.05) == status, "slower by 5 % is a ratio of 1 / 1.05"


@pytest.mark.parametrize(
    ("speed", "noise", "code", "words"),
    [
        (0.90, 0.01, ExitCode.SLOWER, "slower by more than 3.0%"),
        (1.00, 0.01, ExitCode.FINE, "not slower by more than 3.0%"),
        (0.97, 0.05, ExitCode.FINE, "cannot say"),
    ],
)
def test_a_gate_fails_only_when_the_interval_says_so(tmp_path, speed, noise, code, words):
    found = between(made(tmp_path, "run", {"torch-2.13": speed}, noise=noise))
    assert found.exit_code == code
    assert words in found.lines()[0]
    json.dumps(found.to_json(), allow_nan=False)


def test_a_gate_that_cannot_say_tells_after_how_many_blocks_it_would_were_both_alike(tmp_path):
    (item,) = between(made(tmp_path, "run", {}, noise=0.03), 0.05).items
    assert item.status == "cannot say"
    least, most = item.one_sided
    assert item.wanted == math.ceil(10 * (math.log(most / least) / math.log(1.05) / 1.1) ** 2)
    assert f"would have been detected; if both are equal, about {item.wanted} blocks would show it)" in item.line()
    assert blocks_needed(1 / 1.05, 1.05, 30, 0.05) == pytest.approx(30 / 0.55**2, abs=1)
    assert blocks_needed(1 / 1.02, 1.02, 30, 0.05) is None
    assert blocks_needed(1 / 1.05, 1.05, 30, 0.0) is None, "that one is slower at all is never denied by blocks"


@pytest.mark.parametrize("status", ["slower", "not slower"])
def test_a_limit_is_a_question_about_one_side_and_none_is_that_of_the_verdict(tmp_path, status):
    folder = made(tmp_path, "run", {"torch-2.13": 0.9}, noise=0.02)
    (plain,) = between(folder, 0.0).items
    assert plain.one_sided is None
    (item,) = between(folder, 0.5).items
    least, most = item.one_sided
    assert plain.low == item.low < least < item.ratio < most < item.high
    bound, end = (least, item.low) if status == "not slower" else (most, item.high)
    limit = math.sqrt(bound * end)
    assert limit < 1.0, "the question is about a slow-down"
    (item,) = between(folder, 1 / limit - 1).items
    assert (item.status, status_of(item.low, item.high, item.allowed)) == (status, "cannot say")
    side = "above" if status == "not slower" else "below"
    assert item.line().endswith(f"% (95 % sure to be {side} {bound:.3f})")


def test_too_few_blocks_cannot_say(tmp_path):
    found = between(made(tmp_path, "run", {"torch-2.13": 0.5}, blocks=2))
    item = found.items[0]
    assert item.ratio == pytest.approx(0.5, rel=0.1)
    assert (item.low, item.high, item.p, item.status, found.exit_code) == (
        None,
        None,
        None,
        "cannot say",
        ExitCode.FINE,
    )
    assert "too few trials" in found.lines()[0]


def test_what_the_tables_say_of_an_environment_is_said_beside_its_comparison(tmp_path):
    folder = made(tmp_path, "run", {})
    run, measured = folder.load(), read_measurements(folder, PLAN)
    facts = measured.facts["torch-2.13:cnn@local"]
    facts.unproven["its libraries could not be read"] += 1
    facts.outcomes["failed"] += 1
    for names in (("torch-2.6", "torch-2.13"), ("torch-2.13", "baseline")):
        *said, short = compare_environments(run, measured, *names).cautions
        assert short.startswith("Short run (")
        assert [text.partition(" ")[2].split(":")[0] for text in said] == [
            "fails more often than its reference",
            "is not verified",
        ]


def broken(trials, environment, every):
    """Yield trials, with a timeout in every ``every``-th block of an environment."""
    for trial in trials:
        out = trial.environment == environment and trial.block % every == 0
        yield replace(trial, outcome="timed_out", reason="took 60 s", document={}) if out else trial


def test_an_environment_whose_trials_break_is_not_called_as_fast_as_before(tmp_path):
    trials = broken(make_trials(PLAN, Machine({}, noise=0.005), 20), "torch-2.13", 3)
    found = compare_environments(make_run(PLAN), fold_trials(PLAN, trials), "torch-2.6", "torch-2.13", 0.03)
    (item,) = found.items
    assert (item.low > 1 / 1.03, item.status, found.exit_code) == (True, "cannot say", ExitCode.FINE)
    assert item.line().endswith("7 of 20 trials of torch-2.13 failed, 0 of 20 of torch-2.6")
    new = made(tmp_path, "new", {}, seed=2)
    lines = new.trials_file.read_text().splitlines()
    for at, line in enumerate(lines):
        if '"torch-2.13' in line and json.loads(line)["block"] % 3 == 0:
            lines[at] = json.dumps(json.loads(line) | {"outcome": "timed_out", "reason": "took 60 s"})
    new.trials_file.write_text("\n".join(lines) + "\n")
    items = {item.name: item for item in compare_runs(stored(tmp_path, 4), new, allowed=0.3).items}
    assert items["torch-2.6:cnn@local"].status == "not slower"
    assert items["torch-2.13:cnn@local"].status == "cannot say"
    assert items["torch-2.13:cnn@local"].line().endswith("4 of 10 trials of new failed, 0 of 10 of day-3")


def test_a_reference_that_lost_its_slow_trials_makes_nothing_slower(tmp_path):
    machine = Machine({"torch-2.13": 0.97}, noise=0.005)
    measured = fold_trials(PLAN, broken(make_trials(PLAN, machine, 20), "baseline", 3))
    effect = estimate(PLAN, measured, metrics=()).find("torch-2.13:cnn@local")
    assert (effect.high < 1.0, effect.high < effect.best, effect.verdict) == (True, True, "undecided")
    assert "reference-fails-more" in effect.flags
    found = compare_environments(make_run(PLAN), measured, "baseline", "torch-2.13")
    (item,) = found.items
    assert (item.high < 1.0, item.status, item.verdict, found.exit_code) == (
        True, "cannot say", "undecided", ExitCode.FINE,
    )  # fmt: skip
    assert item.line().endswith("0 of 20 trials of torch-2.13 failed, 7 of 20 of baseline")
    whole = compare_environments(
        make_run(PLAN), fold_trials(PLAN, make_trials(PLAN, machine, 20)), "baseline", "torch-2.13"
    )
    assert whole.exit_code == ExitCode.SLOWER


@pytest.mark.parametrize(("old", "new"), [("torch-2.6", "torch-2.13"), ("torch-2.6", "baseline")])
def test_an_old_side_that_is_not_the_reference_is_guarded_as_well(old, new):
    """One pair has its own interval; the other has the inverted interval of the table."""
    trials = broken(make_trials(PLAN, Machine({"torch-2.6": 1.03}, noise=0.003), 20), "torch-2.6", 3)
    (item,) = compare_environments(make_run(PLAN), fold_trials(PLAN, trials), old, new).items
    assert (item.high < 1.0, item.status, item.verdict) == (True, "cannot say", "undecided")


def test_what_is_slower_even_had_the_trials_that_broke_been_the_slowest_is_called_so():
    """One crash of the baseline does not hide an environment that takes twice as long."""
    trials = [
        replace(trial, outcome="failed", reason="exit code 1", document={})
        if (trial.environment, trial.block) == ("baseline", 3)
        else trial
        for trial in make_trials(PLAN, Machine({"torch-2.13": 0.5}, noise=0.01), 20)
    ]
    effect = estimate(PLAN, fold_trials(PLAN, trials), metrics=()).find("torch-2.13:cnn@local")
    assert (effect.best < 1.0, effect.verdict) == (True, "slower")


def test_a_stored_run_that_lost_trials_makes_the_new_one_no_slower(tmp_path):
    old = stored(tmp_path, 4)
    lines = old.trials_file.read_text().splitlines()
    for at, line in enumerate(lines):
        if '"torch-2.13' in line and json.loads(line)["block"] % 3 == 0:
            lines[at] = json.dumps(json.loads(line) | {"outcome": "timed_out", "reason": "took 60 s"})
    old.trials_file.write_text("\n".join(lines) + "\n")
    new = made(tmp_path, "new", {"torch-2.6": 0.7, "torch-2.13": 0.7}, seed=2)
    items = {item.name: item for item in compare_runs(old, new).items}
    assert items["torch-2.6:cnn@local"].status == "slower"
    assert (items["torch-2.13:cnn@local"].status, items["torch-2.13:cnn@local"].verdict) == ("cannot say", "undecided")


@pytest.mark.parametrize(("environments", "blocks"), [(1, 40), (8, 12)])
def test_like_environments_are_not_slower_than_a_reference_that_loses_its_slow_trials(environments, blocks):
    """With the interval alone, 29 % and 11 % of the verdicts in such runs were false."""
    said = verdicts(reference_fails, environments, blocks, 200, np.random.default_rng(6))
    assert np.mean(["slower" in one for one in said]) <= 0.05


def test_what_the_page_says_of_one_skewed_environment_is_so():
    """Few blocks of exponential noise look faster: in over 5 % of runs at 6 blocks, fewer with more; never slower."""
    chance, said = np.random.default_rng(7), {}
    for blocks in (6, 40):
        said[blocks] = verdicts(one_skewed, 1, blocks, 400, chance)
        assert np.mean(["slower" in one for one in said[blocks]]) <= 0.02
    assert 0.05 < np.mean(["faster" in one for one in said[6]]) < 0.12
    assert np.mean(["faster" in one for one in said[40]]) <= 0.05


def test_an_unknown_environment_is_named_with_the_nearest_known(tmp_path):
    with pytest.raises(InputError, match=r"torch-2\.13"):
        between(made(tmp_path, "run", {}), new="torch-2.12")


def test_runs_are_compared_with_welchs_interval():
    chance = np.random.default_rng(1)
    one, other = chance.normal(0, 0.02, 8), chance.normal(0.1, 0.05, 12)
    expected = scipy_stats.ttest_ind(other, one, equal_var=False)
    interval = expected.confidence_interval(LEVEL)
    found = quotient(mean_of_logs(one, 2), mean_of_logs(other, 2))
    assert np.log([found.low, found.high]) == pytest.approx([interval.low, interval.high])
    assert found.p == pytest.approx(expected.pvalue * 0.05 / (1 - LEVEL))
    many = quotient(mean_of_logs(one, 2), mean_of_logs(other, 2), 5)
    expected = scipy_stats.ttest_ind(other, one, equal_var=False).confidence_interval(1 - (1 - LEVEL) / 5)
    assert np.log([many.low, many.high]) == pytest.approx([expected.low, expected.high])


def stored(tmp_path, count, days=0.0, **more):
    """Write ``count`` runs of one configuration into one folder, each with its own drift; return the last one."""
    chance = np.random.default_rng(3)
    names = ("baseline", "torch-2.6", "torch-2.13")
    made_ = []
    for number in range(count):
        speed = dict.fromkeys(names, float(np.exp(chance.normal(0, days))))
        made_.append(made(tmp_path / "good", f"day-{number}", speed, seed=10 + number, **more))
    return made_[-1]


def slower(tmp_path, factor=0.8, **more):
    speed = dict.fromkeys(("baseline", "torch-2.6", "torch-2.13"), factor)
    return made(tmp_path, "new", speed, seed=2, **more)


def test_a_slower_second_run_is_found_and_says_what_is_not_cancelled(tmp_path):
    old, new = stored(tmp_path, 4, days=0.005), slower(tmp_path)
    found = compare_runs(old, new, allowed=0.03)
    assert found.exit_code == ExitCode.SLOWER
    assert [item.runs for item in found.items] == [4] * 3
    assert "as day-3 and 3 more runs of the same work (95 % CI 0." in found.lines()[0]
    assert found.lines()[0].endswith(", slower): slower by more than 3.0%")
    assert "different times" in found.cautions[0]
    assert len(compare_runs(old, new, environments=("torch-2.6",)).items) == 1


def test_two_runs_alone_cannot_say_however_far_apart_they_are(tmp_path):
    found = compare_runs(made(tmp_path, "old", {}), slower(tmp_path / "here", 0.5), allowed=0.03)
    item = found.items[0]
    assert (found.exit_code, item.status, item.low, item.high, item.runs) == (
        ExitCode.FINE,
        "cannot say",
        None,
        None,
        1,
    )
    assert item.ratio == pytest.approx(0.5, rel=0.05)
    assert 0.03 < item.smallest < 0.1
    assert len(found.items) > 1
    lines = found.lines()
    assert "cannot say whether it is slower" in lines[0]
    assert sum("(3 are needed)" in line for line in lines) == 1, "it is the same of every environment"
    assert (
        f"(if all days were alike, a measured difference of {item.smallest:.1%} would have been detected)" in lines[0]
    )
    absurd = replace(item, smallest=2e8).line()
    assert "only a slow-down of more than 10 times would have been detected" in absurd
    json.dumps(found.to_json(), allow_nan=False)


def test_days_that_differ_are_no_slow_down_and_it_is_told_what_would_have_been_seen(tmp_path):
    found = compare_runs(stored(tmp_path, 4, days=0.05), slower(tmp_path, 0.95))
    assert found.exit_code == ExitCode.FINE
    item = found.items[0]
    assert item.status == "cannot say"
    assert item.smallest == pytest.approx(item.high / item.ratio - 1)
    assert f"(a measured difference of {item.smallest:.1%} would have been detected)" in item.line()


def test_what_the_tables_of_stored_runs_say_of_an_environment_is_said_beside_their_comparison(tmp_path):
    old, machine = stored(tmp_path, 3), Machine({}, noise=0.01)
    new = write_run(tmp_path / "new", PLAN, machine, 0)
    for trial in slowed(PLAN, machine, 10, lambda t: t.environment == "torch-2.6" and t.block in (2, 5)):
        lost = trial.environment == "torch-2.13" and trial.block == 3
        new.append(replace(trial, outcome="failed", reason="it broke", document={}) if lost else trial)
    assert compare_runs(old, new).cautions[1:] == (
        "in new torch-2.13:cnn@local fails more often than its reference",
        "in new torch-2.6:cnn@local: 2 of 10 trials are 99% slower than the others",
    )


def test_only_runs_of_the_same_thing_tell_how_runs_differ(tmp_path):
    old, new = stored(tmp_path, 2), slower(tmp_path)
    made(tmp_path / "good", "other-bits", {}, images={"torch-2.13.0@local": {"package torch": "2.6"}})
    made(tmp_path / "good", "other-bench", {}, bench_digest="sha256:other")
    made(tmp_path / "good", "short", {}, blocks=3)
    (tmp_path / "good" / "broken").mkdir()
    (tmp_path / "good" / "broken" / "run.json").write_text("{")
    damaged = made(tmp_path / "good", "damaged", {}).trials_file
    damaged.write_bytes(damaged.read_bytes() * 2)
    assert compare_runs(old, new).items[0].runs == 2
    made(tmp_path / "good", "one-more", {}, seed=20)
    assert compare_runs(old, new).items[0].runs == 3


def test_the_new_run_is_never_one_of_those_it_is_compared_with(tmp_path):
    old = stored(tmp_path, 3)
    new = made(tmp_path / "good", "new", {}, seed=30)
    assert compare_runs(old, new).items[0].runs == 3


@pytest.mark.parametrize("day", [0.0, 0.02, 0.05])
def test_a_gate_fails_falsely_in_at_most_5_of_100_comparisons_whatever_days_do(day):
    for figure in (*simulated(("quiet"), day, 400),):
        assert figure.value < 0.05, figure.line()


def simulated(machine, day, runs):
    chance = np.random.default_rng(6)
    found = (*stored_runs(machine, day, runs, chance), *rerun(machine, day, runs, chance))
    return [figure for figure in found if "nothing lost" in figure.question and "Welch" not in figure.procedure]


def test_runs_of_other_machines_or_benchmarks_are_refused_unless_told(tmp_path):
    old = made(tmp_path, "old", {})
    new = made(tmp_path, "new", {}, host=replace(HOST, name="other"), bench_digest="sha256:other")
    with pytest.raises(InputError, match=r"not comparable: the hosts differ in name.*benchmark itself"):
        compare_runs(old, new)
    assert any("benchmark" in text for text in compare_runs(old, new, anyway=True).cautions)


def test_runs_that_share_nothing_are_refused(tmp_path):
    other = write_run(tmp_path / "other", make_plan((), workloads=("mlp",)), Machine({}), 7)
    with pytest.raises(InputError, match="have no environment in common"):
        compare_runs(made(tmp_path, "old", {}), other)


def test_a_run_is_not_compared_with_itself_or_a_copy_of_it_nor_is_a_copy_one_more_run(tmp_path):
    """Guards against "1.000 times as fast" for a run and its copy, and against counting copies as further runs."""
    old, new = stored(tmp_path, 1), slower(tmp_path)
    for name in ("copy", "another"):
        shutil.copytree(old.path, old.path.parent / name)
    for other in (old, RunFolder(old.path.parent / "copy")):
        with pytest.raises(InputError, match=f"cannot compare {old.path.name} with itself") as caught:
            compare_runs(old, other, anyway=True)
        assert "--environments OLD,NEW" in caught.value.remedy
    assert compare_runs(old, new).items[0].runs == 1


def test_an_environment_is_not_compared_with_itself(tmp_path):
    folder = made(tmp_path, "one", {})
    for new in ("torch-2.6", "torch-2.6:cnn@local"):
        with pytest.raises(InputError, match="are the same environment of run one") as caught:
            between(folder, new=new)
        assert caught.value.remedy.endswith("--environments torch-2.6,control")


def test_runs_of_two_schedules_are_not_comparable(tmp_path):
    old, new = (made(tmp_path, name, {}, design={"schedule": name}) for name in ("sequential", "turns"))
    with pytest.raises(InputError, match="schedules differ: one trial after the other and turns of 3 steps"):
        compare_runs(old, new)
    other = made(tmp_path, "two", {}, design={"schedule": "turns", "turn_apart": 1})
    with pytest.raises(InputError, match="3 steps, 2 before them set apart and turns of 3 steps, 1 before them"):
        compare_runs(new, other)
    assert "schedules differ" in compare_runs(old, new, anyway=True).cautions[1]
    one, other = old.load(), new.load()
    assert [is_same_setup(one, run, one.arms[0]) for run in (one, other)] == [True, False]


def test_turns_of_a_program_are_compared_in_seconds(tmp_path):
    own = {"cnn": Workload(name="cnn", command=("x",), metric={"wall": True})}
    designs = {"old": {"schedule": "turns", "turn": 5}, "new": {"schedule": "turns", "turn": 3}}
    old, new = (made(tmp_path, name, {}, design=design, workloads=own) for name, design in designs.items())
    assert comparability_problems(old.load(), new.load(), tuple(fold_trials(PLAN, ()) for _ in range(2)))[-1] == (
        "the schedules differ: turns of 0.5 s and turns of 0.3 s"
    )
