"""Separate arms next to interleaved ones: each is compared with a reference that ran the same way."""

from dataclasses import replace

import numpy as np
import pytest

from envmatrix.engines.catalog import ENGINES
from envmatrix.launchers.catalog import LAUNCHERS, sequential_unless_interleavable
from envmatrix.matrix.model import Workload
from envmatrix.plan.schedule import make_arms
from envmatrix.plan.turn_order import comparison_roots, unused_reference_copies, with_separate_references
from envmatrix.report.figures.forest import forest
from envmatrix.report.report_data import summarise, summarise_measurements
from envmatrix.report.write import write_reports
from envmatrix.runner.steady_state_runs import SteadyStateRuns
from envmatrix.stats.effect_estimation import between
from envmatrix.stats.effects import LEVEL, Flag
from envmatrix.stats.inference.maxt import critical_value, null_maxima
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.pairing import families, rescale_uninterrupted_arms
from envmatrix.stats.stopping.racing import next_arms
from envmatrix.trials import interleaving_eligibility
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from tests.synthetic import (
    Machine,
    make_design,
    make_environment,
    make_plan,
    make_run,
    make_trials,
    mixed_plan,
    mixed_trials,
    write_mixed,
)
from tests.unit.test_turns import PlainKind, experiment

PLAN = mixed_plan()
FAST = Machine({"a": 1.2, "b": 1.5}, noise=0.01)
OWN = "baseline alone:cnn@local"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return summarise(write_mixed(tmp_path_factory.mktemp("runs") / "mixed", FAST, 12))


def test_what_takes_no_turns_is_compared_with_a_copy_of_its_reference_that_takes_none():
    assert {arm.name: arm.reference for arm in PLAN.arms} == {
        "baseline:cnn@local": None, "control:cnn@local": "baseline:cnn@local", OWN: None,
        "a:cnn@local": OWN, "b:cnn@local": "baseline:cnn@local", "c:cnn@local": "baseline:cnn@local",
    }  # fmt: skip
    own = next(arm for arm in PLAN.arms if arm.is_uninterrupted_copy)
    assert (own.runs, own.is_control) == ("baseline", False)
    assert set(comparison_roots(PLAN.arms).values()) == {"baseline:cnn@local", OWN}


def test_the_copy_leaves_a_race_with_the_last_arm_that_is_compared_with_it():
    plan = mixed_plan(("best", "lone", "other"), ("lone", "other"), max_blocks=40, race=True)
    machine = Machine({"best": 1.3, "lone": 0.8, "other": 0.7}, noise=0.01)
    race = next_arms(plan, fold_trials(plan, mixed_trials(plan, machine, plan.min_blocks)))
    assert {item.arm.partition(":")[0] for item in race.stopped} == {"lone", "other"}
    assert OWN not in race.active
    assert unused_reference_copies(plan.arms, {"lone:cnn@local"}) == set(), "another one still needs it"
    assert unused_reference_copies(plan.arms, {"lone:cnn@local", "other:cnn@local"}) == {OWN}


def test_no_copy_is_made_of_a_reference_that_takes_no_turns_itself():
    arms = make_arms(("base", "a"), ("cnn",), ("local", "other"), "base")
    there = [arm.name for arm in arms if arm.engine == "other"]
    found = {arm.name: arm.reference for arm in with_separate_references(arms, there)}
    assert found["base:cnn@other"] == "base alone:cnn@local", "only the cost of the engine needs one"
    assert found["a:cnn@other"] == "base:cnn@other"
    assert with_separate_references(arms, [arm.name for arm in arms]) == arms


@pytest.mark.parametrize(("schedule", "skipped", "more"), [("turns", (), 1), ("sequential", (), 0), ("turns", "a", 0)])
def test_a_design_has_such_copies_where_something_that_runs_takes_no_turns(schedule, skipped, more):
    arms = make_arms(("baseline", "a"), ("cnn",), ("local",), "baseline")
    about = {"baseline": make_environment("baseline"), "a": make_environment("a", turns=False)}
    design, gone = make_design(PLAN, schedule=schedule), [f"{name}:cnn@local" for name in skipped]
    engines = {"local": ENGINES.make("local", None)}
    decided, found = interleaving_eligibility.decide_schedule(
        design, arms, about, {"cnn": Workload(name="cnn")}, engines, gone
    )
    assert (decided.schedule, len(found)) == (schedule, len(arms) + more)


STEPS, WALL = {"steps": "^step"}, {"wall": True}


@pytest.mark.parametrize(
    ("workload", "environment", "engines", "schedule"),
    [
        ({}, {}, ["local"], "turns"),
        ({}, {"turns": False}, ["local"], "turns"),
        ({"command": ("x",), "metric": STEPS}, {}, ["local"], "turns"),
        ({"command": ("x",), "metric": STEPS, "prepare": ("y",)}, {}, ["local"], "sequential"),
        ({"command": ("x",), "metric": WALL}, {}, ["local"], "sequential"),
        ({"command": ("x",)}, {}, ["local"], "sequential"),
        ({"options": {"parallel": "ddp"}}, {}, ["local"], "sequential"),
        ({"options": {"compile": "inductor"}}, {}, ["local"], "sequential"),
        ({"options": {"compile": "none", "workers": 0}}, {}, ["local"], "turns"),
        ({"options": {"task": "inference"}}, {}, ["local"], "sequential"),
        ({"options": {"workers": 2}}, {}, ["local"], "sequential"),
        ({"options": {"device": "cuda"}}, {}, ["local"], "sequential"),
        ({"options": {"device": "environment"}}, {}, ["local"], "turns"),
        ({"options": {"device": "environment"}}, {"variables": {"BENCH_DEVICE": "xla"}}, ["local"], "sequential"),
        ({}, {}, ["local", "docker"], "sequential"),
        ({}, {}, ["broken"], "sequential"),
    ],
)
def test_a_design_that_says_nothing_takes_turns_where_they_are_valid_for_all_that_it_compares(
    workload, environment, engines, schedule
):
    arms = make_arms(("baseline", "a"), ("cnn",), tuple(engines), "baseline")
    about = {"baseline": make_environment("baseline"), "a": make_environment("a", **environment)}
    workloads = {"cnn": Workload.model_validate({"name": "cnn", **workload})}
    made = {name: ENGINES.make(name, None) if name in ENGINES.names() else None for name in engines}
    design, _ = interleaving_eligibility.decide_schedule(
        make_design(PLAN, schedule="auto"), arms, about, workloads, made
    )
    assert design.schedule == schedule


@pytest.mark.parametrize(("gpus", "schedule"), [((), "turns"), (("all",), "sequential")])
def test_programs_that_share_a_gpu_take_no_turns_by_themselves(gpus, schedule):
    arms = make_arms(("baseline", "a"), ("own",), ("local",), "baseline")
    about = {name: make_environment(name) for name in ("baseline", "a")}
    own = Workload.model_validate({"name": "own", "command": ["python", "train.py"], "metric": STEPS})
    engines = {"local": ENGINES.make("local", None)}
    design, _ = interleaving_eligibility.decide_schedule(
        make_design(PLAN, schedule="auto", gpus=gpus), arms, about, {"own": own}, engines
    )
    assert design.schedule == schedule
    asked = make_design(PLAN, schedule="turns", gpus=gpus)
    assert interleaving_eligibility.decide_schedule(asked, arms, about, {"own": own}, engines)[0].schedule == "turns"


def test_what_is_skipped_does_not_decide_whether_the_others_take_turns():
    arms = make_arms(("baseline", "a"), ("cnn", "ddp"), ("local",), "baseline")
    about = {name: make_environment(name) for name in ("baseline", "a")}
    workloads = {"cnn": Workload(name="cnn"), "ddp": Workload(name="ddp", options={"parallel": "ddp"})}
    gone = [arm.name for arm in arms if arm.workload == "ddp"]
    design = make_design(PLAN, schedule="auto")
    engines = {"local": ENGINES.make("local", None)}
    assert interleaving_eligibility.decide_schedule(design, arms, about, workloads, engines)[0].schedule == "sequential"
    assert (
        interleaving_eligibility.decide_schedule(design, arms, about, workloads, engines, gone)[0].schedule == "turns"
    )


def lone_experiment(**more):
    return experiment(PLAN, environments={"a": make_environment("a", turns=False)}, **more)


def test_a_block_is_parted_into_those_that_take_turns_and_those_that_take_none():
    said = []
    groups = TrialGrouper(lone_experiment(), said.append)
    for number in range(3):
        parts = groups.of(PLAN.block(number))
        alone = [sorted(slot.arm.environment for slot in part) for part in parts if not groups.in_turns(part[0])]
        [turning] = [part for part in parts if groups.in_turns(part[0])]
        assert alone == [["a", "baseline alone"]]
        assert {slot.arm.environment for slot in turning} == {"baseline", "control", "b", "c"}
        assert sum(map(len, parts)) == len(PLAN.arms)
    assert len(said) == 1
    text = "a and baseline alone, their baseline, run uninterrupted, all at the same time (not interleaved): "
    assert said == [f"{text}a level sets `turns: false`, because a pause would change how it behaves"]


def test_of_many_that_take_no_turns_two_are_named():
    said = []
    plan = mixed_plan(("a", "b", "c", "d"), ("a", "b", "c", "d"))
    lone = {name: make_environment(name, turns=False) for name in "abcd"}
    TrialGrouper(experiment(plan, environments=lone), said.append).of(plan.block(0))
    [line] = said
    assert line.startswith("a, b, 2 more and baseline alone, their baseline,")


def test_what_takes_no_turns_starts_side_by_side_where_memory_holds_all_and_takes_one_turn_each(monkeypatch):
    groups = TrialGrouper(lone_experiment(), lambda _: None)
    monkeypatch.setattr("envmatrix.trials.concurrent_trial_groups.free_memory", lambda: 64 * 2**30)
    [alone] = [part for part in groups.of(PLAN.block(0)) if not groups.in_turns(part[0])]
    assert all(map(groups.starts_together, PLAN.block(0)))
    assert [(company.one_turn, len(company.slots)) for company in groups.split_by_memory(alone)] == [(True, 2)]
    monkeypatch.setattr("envmatrix.trials.concurrent_trial_groups.free_memory", lambda: 2**30)
    assert [(company.one_turn, len(company.slots)) for company in groups.split_by_memory(alone)] == [(True, 1)] * 2


@pytest.mark.parametrize(
    "way",
    [
        {"workload": Workload(name="cnn", command=("x",), metric={"wall": True})},
        {"workload": Workload(name="cnn", options={"parallel": "ddp"})},
        {"schedule": "sequential"},
    ],
)
def test_what_has_no_gate_before_its_warm_up_runs_one_after_the_other(way):
    groups = TrialGrouper(lone_experiment(**way), lambda _: None)
    alone = [part for part in groups.of(PLAN.block(0)) if not groups.in_turns(part[0])]
    assert {slot.arm.environment for part in alone for slot in part} >= {"a", "baseline alone"}
    assert all(len(part) == 1 and not groups.starts_together(part[0]) for part in alone)


def test_what_took_no_turns_is_no_part_of_a_group_that_is_there_as_a_whole_or_not_at_all():
    groups, block = TrialGrouper(lone_experiment(), lambda _: None), PLAN.block(0)
    names = {slot.arm.environment: slot.trial for slot in block}
    turning = {names[name] for name in ("baseline", "control", "b", "c")}
    alone = {names["a"], names["baseline alone"]}
    assert set(groups.partial_group_trials(block, {*turning, *alone})) == set()
    assert set(groups.partial_group_trials(block, {names["b"], *alone})) == {names["b"]}
    assert set(groups.partial_group_trials(block, {*turning, names["a"]})) == {names["a"]}


def test_memory_parts_those_that_take_turns_and_leaves_the_others_alone(monkeypatch):
    groups = TrialGrouper(lone_experiment(workload=Workload(name="cnn", options={"steps": 30})), lambda _: None)
    monkeypatch.setattr("envmatrix.trials.concurrent_trial_groups.free_memory", lambda: 4 * 2**30)
    [turning] = [part for part in groups.of(PLAN.block(0)) if groups.in_turns(part[0])]
    [company] = groups.split_by_memory(turning)
    assert {slot.arm.environment for slot in company.kept} == {"baseline", "control"}
    assert [len(wave) for wave in company.waves] == [1, 1]


def test_an_effect_is_over_the_reference_that_was_measured_in_the_same_way(whole):
    effects = {effect.environment: effect for effect in whole.analysis.primary_effects()}
    assert effects["a"].ratio == pytest.approx(1.2, rel=0.02), "half as fast as in turns, and so is its reference"
    assert effects["b"].ratio == pytest.approx(1.5, rel=0.02)
    assert effects["a"].reference == OWN
    assert not any(Flag.UNEQUAL_WORK in effect.flags for effect in effects.values())
    assert set(effects) == {"a", "b", "c", "control"}


def test_intervals_of_one_table_hold_together(whole):
    assert [family.together for family in families(PLAN)] == [1, 3, 3]
    alone, level = whole.analysis.find("a:cnn@local"), whole.analysis.level
    reach = critical_value(alone.units, 3, 1, level=level, own=True) * alone.error
    assert (alone.low, alone.high) == pytest.approx((alone.ratio * np.exp(-reach), alone.ratio * np.exp(reach)))


@pytest.mark.parametrize("blocks", [6, 10, 20])
def test_two_references_make_claims_err_hardly_more_often_than_one(blocks):
    right = 1.0
    for comparisons, copies in ((6, 2), (2, 1)):
        reach = critical_value(blocks, 8, copies, level=LEVEL, own=True)
        right *= (null_maxima(blocks, comparisons, copies, own=True) < reach).mean()
    assert 1.0 - LEVEL - 0.001 <= 1.0 - right <= 0.039


def pair(whole, old, new):
    arms = {arm.environment: arm for arm in whole.plan.arms}
    return between(whole.analysis, whole.measured, arms[old], arms[new], whole.run.environments)


def test_any_two_are_compared_through_their_references(whole):
    assert pair(whole, "baseline", "a") == whole.analysis.find("a:cnn@local")
    assert pair(whole, "baseline alone", "b") == whole.analysis.find("b:cnn@local")
    found = pair(whole, "a", "b")
    assert found.ratio == pytest.approx(1.5 / 1.2, rel=0.02)
    assert found.low < 1.25 < found.high
    assert Flag.UNEQUAL_WORK not in found.flags
    back = pair(whole, "b", "a")
    assert back.ratio == pytest.approx(1 / found.ratio)


def test_the_copies_of_one_reference_tell_what_turns_change(whole):
    assert pair(whole, "baseline alone", "baseline").ratio == pytest.approx(2.0, rel=0.02)


def test_a_factorial_is_attributed_though_some_of_its_cells_took_no_turns(tmp_path):
    plan = mixed_plan(("x", "y", "xy"), ("x", "xy"))
    levels = {"baseline": "00", "x": "10", "y": "01", "xy": "11"}
    environments = {
        name: make_environment(name, {"first": first, "second": second}) for name, (first, second) in levels.items()
    }
    machine = Machine({"x": 1.2, "y": 1.1, "xy": 1.32}, noise=0.005)
    found = summarise(write_mixed(tmp_path / "cells", machine, 12, plan, environments=environments))
    [item] = found.attributions
    effects = {"=".join(one.levels[0]): one.estimate.ratio for one in item.contrasts if len(one.levels) == 1}
    assert effects == pytest.approx({"first=1": 1.2, "second=1": 1.1}, rel=0.02)
    assert item.total.ratio == found.analysis.find("xy:cnn@local").ratio


def test_what_took_no_turns_is_as_simple_as_its_settings_beside_those_of_the_reference(tmp_path):
    levels = {"baseline": "00", "a": "11", "b": "01", "c": "00"}  # a, which runs separately, is not simpler than b
    environments = {
        name: make_environment(name, {"first": first, "second": second}) for name, (first, second) in levels.items()
    }
    alike = Machine({"a": 1.3, "b": 1.3}, noise=0.02)
    [group] = summarise(write_mixed(tmp_path / "alike", alike, 12, environments=environments)).groups
    assert group.headline.startswith("b is 1.")


def test_reports_show_the_copy_and_who_is_compared_with_it(tmp_path):
    folder = write_mixed(tmp_path / "mixed", FAST, 12)
    write_reports(folder, progress=pytest.fail)
    text = (folder.path / "report.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "a \\*" in rows
    assert "| reference |" in rows["baseline alone"]
    assert "turns of 3 timed steps" in rows["schedule"]
    assert "48 of 72 trials, the others one after the other and against baseline alone" in rows["schedule"]
    assert "b is 1.5" in text
    [group] = summarise(folder).groups
    assert [row.arm.environment for row in group.all_rows] == ["baseline", "b", "a", "c", "control", "baseline alone"]
    assert "no complete block" not in forest(group), "it is a reference, and compared with nothing"


@pytest.mark.parametrize(
    ("metric", "turn"), [({"wall": True}, "0.3 s"), ({"steps": "^x"}, "3 timed steps and 2 before them")]
)
def test_turns_of_programs_are_told_in_seconds_or_in_steps(tmp_path, metric, turn):
    own = {"cnn": Workload(name="cnn", command=("python", "x.py"), metric=metric)}
    summary = summarise(write_mixed(tmp_path / "own", FAST, 2, workloads=own))
    assert summary.schedule.startswith(f"turns of {turn}, 4 processes alive at once;")


def test_where_all_trials_took_turns_no_others_are_told_of():
    plan = make_plan(("a",))
    trials = (replace(trial, together=3) for trial in make_trials(plan, FAST, 3))
    summary = summarise_measurements(make_run(plan, design={"schedule": "turns"}), fold_trials(plan, trials))
    assert summary.schedule.endswith("3 processes alive at once; 9 of 9 trials")


@pytest.mark.parametrize(
    ("lone", "said"),
    [(("a", "baseline alone"), "; 48 of 72 trials, the others uninterrupted and against baseline alone"),
     (None, "interleaving was requested, but each trial ran uninterrupted, 6 processes alive at once")],
)  # fmt: skip
def test_reports_tell_what_took_all_steps_in_one_go(lone, said):
    def in_one_go(trial):
        if lone is not None and trial.environment not in lone:
            return trial
        timing = {**trial.document["timing"], "turns": [{"apart_ns": [], "steps": 30}]}
        return replace(trial, together=2 if lone else 6, document={**trial.document, "timing": timing})

    run = make_run(PLAN, design={"schedule": "turns"})
    measured = fold_trials(PLAN, map(in_one_go, mixed_trials(PLAN, FAST, 12)))
    assert summarise_measurements(run, measured).schedule.endswith(said)


def test_how_long_turns_were_is_said_of_what_took_them(tmp_path):
    plan = make_plan(("a",), workloads=("cnn", "own"))
    own = Workload(name="own", command=("python", "x.py"), metric={"regex": "([0-9]+) s"})
    run = make_run(plan, design={"schedule": "turns"}, workloads={"cnn": Workload(name="cnn"), "own": own})
    trials = (replace(trial, together=3 if trial.workload == "cnn" else None) for trial in make_trials(plan, FAST, 2))
    assert summarise_measurements(run, fold_trials(plan, trials)).schedule.startswith(
        "turns of 3 timed steps and 2 before them, 3"
    )


def test_what_is_interleaved_goes_on_in_its_blocks_and_has_no_run_of_its_own():
    assert not SteadyStateRuns(experiment(PLAN, steady=True), (), pytest.fail).left


def test_a_launcher_that_runs_one_after_the_other_does_so_and_says_it():
    said = []
    design = make_design(PLAN, schedule="turns")
    for able in ("here", "slurm"):
        assert sequential_unless_interleavable(LAUNCHERS.make(able), design, pytest.fail) is design
    assert sequential_unless_interleavable(PlainKind(), design, said.append).schedule == "sequential"
    assert said == ["no turns: launcher plain runs one trial after the other"]
    unsaid = make_design(PLAN, schedule="auto")
    assert sequential_unless_interleavable(PlainKind(), unsaid, pytest.fail).schedule == "sequential"


def test_slow_trials_of_the_copy_are_slow_in_what_is_held_against_arms_in_turns(whole):
    slow = np.zeros_like(whole.analysis.slow)
    names = [arm.environment for arm in PLAN.arms]
    slow[names.index("baseline alone"), 3] = True
    measured, marked = rescale_uninterrupted_arms(PLAN, whole.measured, whole.analysis.primary, slow)
    assert {names[row] for row in np.flatnonzero(marked[:, 3])} == {"baseline alone", "a"}
    kept = replace(whole.measured, table=measured.table)
    assert kept.geometric_mean("b:cnn@local", "samples_per_s") == whole.measured.geometric_mean(
        "b:cnn@local", "samples_per_s"
    )
    assert kept.geometric_mean("a:cnn@local", "samples_per_s") > 1.5 * whole.measured.geometric_mean(
        "a:cnn@local", "samples_per_s"
    )
