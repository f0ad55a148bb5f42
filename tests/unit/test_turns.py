"""Interleaving: which trials are alive together, their order, and the messages a gate accepts."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.block.available_memory import free_memory, usable_memory
from envmatrix.block.interleave import turn_order, turns_done_after
from envmatrix.block.turn_gate import FOLDER, GateError, open_gate
from envmatrix.engines.catalog import ENGINES
from envmatrix.errors import InputError
from envmatrix.launchers.base import LauncherKind
from envmatrix.launchers.catalog import find_trial_host
from envmatrix.matrix.model import Workload
from envmatrix.plan import turn_order as order
from envmatrix.plan.schedule import make_arms
from envmatrix.results import trial_of
from envmatrix.trials import interleaving_eligibility
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from tests.synthetic import make_design, make_environment, make_plan, make_run

PLAN = make_plan(("a", "b"))


def test_what_is_compared_directly_or_through_others_lives_together():
    arms = make_arms(("base", "a"), ("cnn", "mlp"), ("local", "docker"), "base", application=("cnn2",))
    roots = order.comparison_roots(arms)
    assert {roots[arm.name] for arm in arms if arm.workload in ("cnn", "cnn2")} == {"base:cnn@local"}
    assert {roots[arm.name] for arm in arms if arm.workload == "mlp"} == {"base:mlp@local"}
    plan = make_plan(("a",), workloads=("cnn", "mlp"))
    block = plan.block(3)
    parts = order.comparison_groups(block, order.comparison_roots(plan.arms))
    assert sorted(slot.trial for part in parts for slot in part) == [slot.trial for slot in block]
    assert [{slot.arm.workload for slot in part} for part in parts] in ([{"cnn"}, {"mlp"}], [{"mlp"}, {"cnn"}])


def test_the_order_of_a_round_is_fresh_seeded_and_the_same_for_those_who_are_left():
    names = [f"t{number}" for number in range(6)]
    rounds = [turn_order(1, 0, number, names) for number in range(50)]
    assert all(sorted(one) == names for one in rounds)
    assert len({tuple(one) for one in rounds}) > 40
    assert rounds == [turn_order(1, 0, number, reversed(names)) for number in range(50)]
    assert rounds != [turn_order(2, 0, number, names) for number in range(50)]
    assert rounds != [turn_order(1, 1, number, names) for number in range(50)]
    firsts = [one[0] for one in (turn_order(1, 0, number, names) for number in range(600))]
    assert all(60 <= firsts.count(name) <= 140 for name in names), "each comes first about as often"


@pytest.fixture
def gate(tmp_path):
    with open_gate(tmp_path) as made:
        yield made, tmp_path / FOLDER


def test_a_gate_hears_whole_lines_and_says_turns(gate):
    made, folder = gate
    assert made.remaining_steps() is None
    with (folder / "ready").open("wb", buffering=0) as told:
        told.write(b"ready ")
        assert made.remaining_steps() is None
        told.write(b"30\n")
        assert made.remaining_steps() == 30
    made.go(2, 10)
    made.end()
    with (folder / "go").open() as said:
        assert [said.readline(), said.readline()] == ["go 2 10\n", "end\n"]


@pytest.mark.parametrize("said", [b"ready\n", b"ready x\n", b"ready 1\nready 2\n", b"x" * 100, b"ready -1\n"])
def test_a_gate_believes_nothing_else(gate, said):
    made, folder = gate
    with (folder / "ready").open("wb", buffering=0) as told:
        told.write(said)
        with pytest.raises(GateError):
            made.remaining_steps()


# Trials that may be interleaved.


def experiment(plan=PLAN, workload=None, engines=("local",), environments=None, **design):
    run = make_run(plan, design={"schedule": "turns", **design})
    run = run.model_copy(
        update={
            "workloads": {name: workload or Workload(name=name) for name in run.workloads},
            "environments": {**run.environments, **(environments or {})},
        }
    )
    made = {name: ENGINES.make(name, None) for name in engines}
    return SimpleNamespace(run=run, plan=plan, engines=made)


@pytest.mark.parametrize(
    ("workload", "said"),
    [(Workload(name="w", command=("x",)), ""),
     (Workload(name="w", command=("x",), metric={"regex": "(.)", "better": "higher"}), "reports its own times"),
     (Workload(name="w", command=("x",), metrics={"a": {"wall": True}, "b": {"regex": "(.)", "better": "higher"}}),
      "reports its own times"),
     (Workload(name="w", command=("x",), metric={"steps": "^step"}), ""),
     (Workload(name="w", command=("x",), metrics={"a": {"steps": "^s"}, "b": {"wall": True}}), "reports its own times"),
     (Workload(name="w", command=("x",), prepare=("sync",)), "`prepare`"),
     (Workload(name="w", options={"parallel": "ddp"}), "several processes"),
     (Workload(name="w", options={"collective": "all-reduce"}), "several processes"),
     (Workload(name="w", options={"device": "cuda"}), ""),
     (Workload(name="w", options={"device": "xla"}), "one process at a time"),
     (Workload(name="w", options={"device": "environment"}), ""), (Workload(name="w"), "")],
)  # fmt: skip
def test_what_takes_no_turns_says_why(workload, said):
    run = experiment(workload=workload)
    reasons = interleaving_eligibility.non_interleaved_arms(
        PLAN.arms, run.run.environments, run.run.workloads, run.engines
    )
    assert list(reasons) == ([arm.name for arm in PLAN.arms] if said else [])
    assert all(said in reason for reason in reasons.values())


def test_of_a_run_that_has_no_copy_for_it_an_arm_without_turns_takes_all_with_it_that_are_compared():
    lone = {"a": make_environment("a", turns=False)}
    made = experiment(environments=lone)
    assert list(interleaving_eligibility.non_interleaved_reasons(made.run, made.engines)[0]) == [PLAN.arms[0].name]
    said = []
    groups = TrialGrouper(experiment(environments=lone), said.append)
    [part] = groups.of(PLAN.block(0))
    assert not any(map(groups.in_turns, part))
    assert groups.of(PLAN.block(1))
    assert len(said) == 1
    assert "`turns: false`" in said[0]


def test_without_a_schedule_of_turns_every_trial_is_alone():
    plain = experiment(schedule="sequential")
    groups = TrialGrouper(plain, pytest.fail)
    assert groups.of(PLAN.block(0)) == [[slot] for slot in PLAN.block(0)]
    assert not groups.in_turns(PLAN.block(0)[0])


def test_what_processes_need_is_what_they_had_at_most_within_their_limit():
    names, gib = [arm.name for arm in PLAN.arms], 2**30
    assert interleaving_eligibility.memory_needs(PLAN.arms, {}, None) == dict.fromkeys(names, gib)
    assert interleaving_eligibility.memory_needs(PLAN.arms, {}, gib // 2) == dict.fromkeys(names, gib // 2)
    assert interleaving_eligibility.memory_needs(PLAN.arms, {names[2]: gib // 4}, None) == {
        **dict.fromkeys(names, gib),
        names[2]: gib // 4,
    }
    assert interleaving_eligibility.memory_needs(PLAN.arms, {names[2]: gib}, None, {"cnn": gib // 2, "other": gib}) == {
        **dict.fromkeys(names, gib * 5 // 8), names[2]: gib
    }  # fmt: skip
    assert usable_memory(5 * gib) == 4 * gib


LARGE = make_plan(("a", "b", "c", "d"))


def parted(room, most=3, plan=LARGE, **more):
    slots = plan.block(0)
    needs = {**dict.fromkeys((slot.arm.name for slot in slots), 1), **more}
    return order.split_into_waves(slots, needs, room, most)


@pytest.mark.parametrize(("room", "sizes"), [(5, [3, 1]), (4, [2, 2]), (3, [1, 1, 1, 1]), (2, None), (0, None)])
def test_groups_that_memory_does_not_hold_are_parted_and_the_references_live_in_all_of_them(room, sizes):
    found = parted(room, most=4)
    if sizes is None:
        assert found is None
        return
    assert [len(wave) for wave in found.waves] == sizes
    assert {slot.arm.environment for slot in found.kept} == {"baseline", "control"}
    assert sorted(slot.trial for slot in found.slots) == sorted(slot.trial for slot in LARGE.block(0))


def test_there_are_no_more_smaller_groups_than_a_reference_has_turns():
    assert parted(3, most=3) is None
    assert parted(4, most=2)
    assert parted(4, **{"a:cnn@local": 3}) is None, "one that fits nowhere"


@given(st.integers(1, 9).flatmap(lambda waves: st.tuples(st.just(waves), st.integers(waves, 99))))
def test_a_reference_has_turns_in_every_smaller_group_and_all_of_them_at_the_end(asked):
    waves, turns_there = asked
    ends = [turns_done_after(wave, waves, turns_there) for wave in range(waves)]
    assert all(later > sooner for sooner, later in itertools.pairwise([0, *ends]))
    assert ends[-1] == turns_there


@pytest.mark.parametrize(
    ("gib", "alive", "said"),
    [
        (9, [6], ""),
        (6, [4, 4], "run interleaved in 2 batches, each with its own reference"),
        (1, [1] * 6, "run one after another"),
    ],
)
def test_memory_that_is_not_there_is_told_once_and_makes_groups_smaller(monkeypatch, gib, alive, said):
    told = []
    groups = TrialGrouper(experiment(LARGE, Workload(name="w", options={"steps": 30})), told.append)
    monkeypatch.setattr("envmatrix.trials.concurrent_trial_groups.free_memory", lambda: gib * 2**30)
    for number in range(3):
        [group] = groups.of(LARGE.block(number))
        assert groups.in_turns(group[0])
        companies = groups.split_by_memory(group)
        assert [len(one.kept) + len(wave) for one in companies for wave in one.waves] == alive
        assert sorted(slot.trial for one in companies for slot in one.slots) == sorted(slot.trial for slot in group)
    assert len(told) == (1 if said else 0)
    assert all(f"{said}: 6 processes may need 6.0 GiB, but only {gib}.0 GiB are free" in line for line in told)


def test_what_processes_of_the_same_workload_took_before_says_what_is_needed(monkeypatch):
    monkeypatch.setattr("envmatrix.trials.concurrent_trial_groups.free_memory", lambda: 3 * 2**30)
    known = TrialGrouper(experiment(LARGE), pytest.fail, usual={"cnn": 2**28})
    assert [len(wave) for one in known.split_by_memory(LARGE.block(0)) for wave in one.waves] == [6]
    noted, slots = TrialGrouper(experiment(LARGE), pytest.fail), LARGE.block(0)
    document = {"schema": 1, "metrics": {"peak_rss_bytes": 2**28}}
    noted.note(trial_of(slots[0], "ok", wall_s=1.0, document=document))
    assert [len(wave) for one in noted.split_by_memory(slots) for wave in one.waves] == [6]


def test_free_memory_is_what_the_machine_and_the_control_group_leave(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    assert free_memory(tmp_path, tmp_path) == 4000 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    for limit, free in (("max", 4000 * 1024), ("3000", 2000), ("500", 0)):
        (tmp_path / "memory.max").write_text(limit + "\n")
        assert free_memory(tmp_path, tmp_path) == free


def test_of_a_group_that_took_turns_all_trials_are_there_or_none():
    groups = TrialGrouper(experiment(), pytest.fail)
    block = PLAN.block(0)
    names = [slot.trial for slot in block]
    assert list(groups.partial_group_trials(block, set(names))) == []
    assert list(groups.partial_group_trials(block, set())) == []
    assert list(groups.partial_group_trials(block, set(names[1:3]))) == names[1:3]
    alone = TrialGrouper(experiment(workload=Workload(name="w", command=("x",), prepare=("y",))), pytest.fail)
    assert list(alone.partial_group_trials(block, set(names[1:3]))) == []


class PlainKind(LauncherKind):
    """A launcher that runs one trial after the other."""

    name = "plain"


def test_a_launcher_that_cannot_refuses_turns_before_anything_is_built():
    with pytest.raises(InputError, match="one after the other, not in turns"):
        find_trial_host(PlainKind(), make_design(PLAN, schedule="turns"), {}, [], {}, pytest.fail)
