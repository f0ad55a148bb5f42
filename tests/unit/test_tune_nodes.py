"""A search on several nodes: candidates are split into blocks that run in parallel, each with its own baseline."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envmatrix.api.tuning import search as tunes
from envmatrix.errors import InputError
from envmatrix.launchers.local import Here
from envmatrix.matrix.parse import parse
from envmatrix.plan import make_arms, plan_of
from envmatrix.results.trial import trial_of
from envmatrix.search.next_trials import REFERENCES, Budget, Search
from envmatrix.search.study_folder import StudyFolder
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import THROUGHPUT
from envmatrix.stats.nodes import gains_by_node
from tests.unit.test_tune_loop import Machine, begun, machine, watch  # noqa: F401 - a fixture
from validation import simulated_tuning

SIZES = (4, 4, 3, 3, 2, 2)


def plan(parts):
    arms = make_arms(("baseline", "a", "b", "c", "d", "e"), ("own",), ("local",), "baseline")
    matrix = """
version: 2
environments: {baseline: {}}
workloads: {own: {command: [python, x.py]}}
designs: {default: {environments: [baseline], workloads: own}}
"""
    return plan_of(parse(matrix, Path("matrix.yaml")).designs["default"], arms, parts=parts)


def test_what_is_dealt_runs_in_one_block_of_each_so_many_and_references_in_all():
    dealt = plan(2)
    blocks = [[slot.arm.environment for slot in dealt.block(index)] for index in range(4)]
    assert [sorted(names) for names in blocks[:2]] == [
        ["a", "baseline", "c", "control", "e"],
        ["b", "baseline", "control", "d"],
    ]
    assert sorted(blocks[2]) == sorted(blocks[0])
    assert [arm.environment for arm in dealt.order(1)] == blocks[1]
    assert [slot.position for slot in dealt.block(1)] == [0, 1, 2, 3]
    assert [slot.arm for slot in plan(1).block(3)] == [slot.arm for slot in replace(plan(1), parts=1).block(3)]
    assert len(plan(1).block(0)) == 7


def searched(width, number=7, trials=400):
    there = simulated_tuning.world(number, 0.03, SIZES)
    search, batches, steps = Search(there.space, width=width), [], []
    while step := search.next_step(batches, Budget(trials, trials - there.ran)):
        steps.append(step)
        batches.append(there.batch(step))
    return there, steps, batches


def test_four_nodes_get_candidates_of_their_own_in_fewer_rounds():
    _, of_one, _ = searched(1)
    four, of_four, batches = searched(4)
    screens = [step for step in of_four if step.phase == "screen"]
    assert screens
    assert all(step.parts == step.blocks == 4 for step in screens)
    for step, batch in zip(of_four, batches, strict=True):
        ran = np.isfinite(batch.scores) | (batch.broken > 0)
        assert ran[:REFERENCES].all(), "each block has its own baseline and a copy of it"
        if step.parts > 1:
            assert (ran[REFERENCES:].sum(axis=1) == 1).all(), "a candidate runs on one node"
    assert four.ran <= 1.05 * 400
    assert len(screens) < 0.5 * sum(step.phase == "screen" for step in of_one)
    assert of_four[-1].phase == "confirm"
    others = [[len(steps) for _, steps, _ in (searched(4, number), searched(1, number))] for number in (5, 9)]
    of_all = np.sum([[len(of_four), len(of_one)], *others], axis=0)
    assert of_all[0] < 0.6 * of_all[1], "one node's races are short in some worlds"


def test_four_nodes_find_most_of_what_there_is_to_gain():
    found = []
    for number in range(8, 12):
        there, steps, _ = searched(4, number)
        found.append(np.expm1(there.gains[steps[-1].rows[0]]) / there.best)
    assert np.mean(found) > 0.85


def test_what_several_nodes_find_is_told_beside_how_many_trials_ran_one_after_the_other():
    found = {(one.procedure, one.question): one.value for one in simulated_tuning.on_nodes((1, 4), 5, 1, (3, 3, 2, 2))}
    clock = [found[f"envmatrix tune, {nodes}", "trials one after the other"] for nodes in ("1 node", "4 nodes")]
    assert 280 < clock[0] <= 300
    assert clock[1] < 0.35 * clock[0]
    assert found["envmatrix tune, 4 nodes", "share of the best possible gain"] > 0.5
    there = simulated_tuning.world(5, 0.03, SIZES, 4)
    assert len({tuple(drift) for drift in there.drift}) == 4, "each drifts on its own"
    assert (there.drift[0] == simulated_tuning.world(5, 0.03, SIZES).drift[0]).all()


def test_each_step_of_a_search_on_disk_is_dealt_to_the_blocks_that_run_side_by_side(machine, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Here, "width", 2)
    monkeypatch.setattr("envmatrix.launchers.local.LocalLauncherKind.width", lambda *_: 2)
    result = tunes.finish_search(begun(), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert result.answer.spent_s <= 1.05 * 120
    first = StudyFolder(result.folder).steps()[0].load()
    assert first.parts == 2
    ran = {index: {slot.arm.environment for slot in first.plan.block(index)} for index in range(2)}
    assert ran[0] & ran[1] == {"baseline", "control"}
    trials = [json.loads(line) for line in (result.folder / first.name / "trials.jsonl").read_text().splitlines()]
    assert {(one["block"], one["environment"]) for one in trials} == {(b, name) for b in ran for name in ran[b]}
    assert StudyFolder(result.folder).load().place.width == 2
    confirmed = StudyFolder(result.folder).steps()[-1].load()
    assert confirmed.parts == 1, "what is confirmed runs in every block"


def test_what_was_confirmed_is_told_by_node_the_worst_last():
    there = plan(1)
    arm = next(arm for arm in there.arms if arm.environment == "a")
    gains = {"node-1": 1.1, "node-2": 1.4}
    trials = []
    for block in range(4):
        node = f"node-{1 + block % 2}"
        for slot in there.block(block):
            speed = 100.0 * (gains[node] if slot.arm is arm else 1.0)
            document = {"schema": 1, "metrics": {"samples_per_s": speed}}
            trials.append(trial_of(slot, "ok", document=document, node=node))
    found = gains_by_node(there, fold_trials(there, trials), arm, THROUGHPUT)
    assert [(one.node, one.blocks) for one in found] == [("node-2", 2), ("node-1", 2)]
    assert [one.ratio for one in found] == pytest.approx([1.4, 1.1])
    one_node = fold_trials(there, [replace(trial, node="node-1") for trial in trials])
    assert gains_by_node(there, one_node, arm, THROUGHPUT) == ()


def test_a_program_on_the_command_line_needs_an_image_for_a_container_and_the_launchers_own_options(monkeypatch):
    for name in [name for name in os.environ if name.startswith("BENCH_")]:  # of the real tests
        monkeypatch.delenv(name)
    with pytest.raises(InputError, match="needs an image") as caught:
        tunes.tune(["python", "x.py"], engine="docker")
    assert "--image" in caught.value.remedy
    with pytest.raises(InputError, match="--queue means nothing to launcher here"):
        tunes.tune(["python", "-c", ""], launcher_options={"queue": "all.q"})
