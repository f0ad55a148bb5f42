"""`nox -s selfbench -- --agreement --paired`: results from processes that run interleaved, then for long."""

import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from envmatrix.errors import InputError
from tests.synthetic import Machine, make_plan, make_trials, write_run
from validation import agreement, paired
from validation import measured_parts as parts

TURN = 3
#: Turns of a trial as (window, steps): those of its design, a stretch, the turns between stretches, a stretch.
TAKEN = [("first", TURN), ("first", TURN), ("long", 7), *4 * [("turns", TURN)], ("long", 7)]
PLAN = make_plan(("fast", "same"))


def stepping(trial, speeds, chance):
    """Return a trial with a random speed of its process, times the environment's speed in each window."""
    own = 0.02 * math.exp(chance.gauss(0, 0.2)) * math.exp(chance.gauss(0, 0.005))
    speed = dict(zip(("turns", "long", "first"), speeds.get(trial.environment, (1.0, 1.0, 1.0)), strict=True))
    steps = [int(1e9 * own / speed[window]) for window, count in TAKEN for _ in range(count)]
    turns = [{"apart_ns": [10**9], "steps": count} for _, count in TAKEN]
    timing = {**trial.document["timing"], "steps_ns": steps, "turns": turns}
    return replace(trial, document={**trial.document, "timing": timing})


def part_of(folder, speeds, blocks=8, seed=1):
    part = parts.part_here(folder, {"stretch": 10.0, "paired": True}, "", lambda _: None)
    chance = random.Random(seed)
    made = write_run(part / "mine-paired", PLAN, Machine({}), 0, design={"turn": TURN})
    for trial in make_trials(PLAN, Machine({}), blocks, seed):
        made.append(stepping(trial, speeds, chance))
    return part


def judged(folder, capsys):
    assert agreement.measure(SimpleNamespace(to=folder, of_bench="", minutes=0)) == 0
    [found] = json.loads((folder / "agreement.json").read_text())["designs"]
    return {row["arm"].partition(":")[0]: row for row in found["arms"]}, capsys.readouterr().out


def test_what_a_process_is_as_a_whole_cancels(tmp_path, capsys):
    part = part_of(tmp_path, {"fast": (1.3, 1.3, 1.2)})
    rows, said = judged(tmp_path, capsys)
    assert [row["agreement"] for row in rows.values()] == ["agree"] * 3
    effect = rows["fast"]["effect"]["long"]
    assert effect["low"] < 1.2 < 1.4 < effect["high"], "processes differ"
    assert rows["fast"]["turns_over_long"]["value"] == pytest.approx(1.0, abs=0.001)
    assert rows["fast"]["first_over_long"]["value"] == pytest.approx(1.2 / 1.3, abs=0.001), "judged apart"
    assert "arms that disagree by more than 3 %: none" in said
    (part / "mine-paired/trials.jsonl").unlink()
    assert judged(tmp_path, capsys)[0] == rows, "what is kept says the same"


def test_an_arm_that_turns_change_is_named_and_several_parts_say_more_than_one(tmp_path, capsys):
    speeds = {"fast": (1.3, 1.2, 1.2), "same": (1.015, 1.0, 1.0)}
    (part_of(tmp_path, speeds) / "machine").unlink()
    one, _ = judged(tmp_path, capsys)
    part_of(tmp_path, {**speeds, "fast": (1.04 * 1.3, 1.04 * 1.2, 1.2)}, seed=2)
    rows, said = judged(tmp_path, capsys)
    assert "part 1: 8; part 2: 8" in said
    assert rows["fast"]["agreement"] == "DISAGREE"
    assert rows["fast"]["turns_over_long"]["value"] == pytest.approx(1.3 / 1.2, rel=0.001)
    assert rows["same"]["agreement"] == "agree", "1.5 % are within 3 %"
    assert rows["same"]["turns_over_long"]["value"] == pytest.approx(1.015, rel=0.001)
    assert len(one) == len(rows)


def test_a_trial_that_broke_is_in_no_window(tmp_path):
    trials = [stepping(trial, {}, random.Random(1)) for trial in make_trials(PLAN, Machine({}), 2)]
    first = next(number for number, trial in enumerate(trials) if trial.environment == "fast")
    trials[first] = replace(trials[first], outcome="failed")
    windows = paired.windows_of(trials, TURN)
    assert len(windows["block"]) == len(trials) - 1
    measured = paired.measured_of(PLAN, windows, "long")
    there = dict(zip(measured.arms, np.isfinite(measured.ratios).tolist(), strict=True))
    assert there == {name: [name != trials[first].arm, True] for name in there}
    assert paired.windows_of(trials, 7)["block"] == [], "steps in turns alone say nothing of long ones"


@pytest.mark.parametrize(("steps", "long", "stretch"), [(6, 60.0, 10.0), (7, 25.0, 10.0)])
def test_first_come_the_turns_of_the_design_and_then_stretches_with_turns_between_them(steps, long, stretch):
    design, stretches = SimpleNamespace(turn=3, turn_apart=1), math.ceil(long / stretch)
    workload = SimpleNamespace(options={"steps": steps * (2 * stretches - 1) + stretches * 500})
    run = SimpleNamespace(design=design, workloads={"w": workload}, arms=[SimpleNamespace(workload="w")])
    way = SimpleNamespace(experiment=SimpleNamespace(run=run))
    lengths = paired.lengths_of(way, steps, SimpleNamespace(long=long, stretch=stretch))
    short = [(1, 3), (1, 3), *([(1, 1)] if steps == 7 else [])]
    taken = [lengths(had) for had in range(3 * len(short) + 2)]
    assert taken == [*short, (50, 500), *short, *short, (50, 500)]


def test_pairs_want_stretches_and_this_machine_and_a_folder_of_their_own(tmp_path):
    chosen = SimpleNamespace(to=tmp_path, stretch=0.0, long=60.0, paired=True, launcher="slurm")
    with pytest.raises(InputError, match="wants --stretch"):
        agreement.run(chosen)
    chosen.stretch = chosen.long
    with pytest.raises(InputError, match="wants two stretches at least"):
        agreement.run(chosen)
    with pytest.raises(InputError, match="turns are all alike"):
        paired.run_design(chosen, "mine", 1.0)
    assert list(tmp_path.iterdir()) == []
    parts.part_here(tmp_path, {"stretch": 10.0}, "", print)
    chosen.stretch = 10.0
    with pytest.raises(InputError, match="holds other long trials"):
        agreement.run(chosen)
