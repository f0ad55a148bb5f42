"""The fast reader of trials.jsonl reads what the slow one reads, whatever a line looks like."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envmatrix.errors import StoreError
from envmatrix.results.reading import LineReader
from envmatrix.results.trial import trial_from_line
from envmatrix.stats import measurements
from envmatrix.stats.measurements import fold_trials, read_measurements
from tests.synthetic import Machine, make_plan, make_trials, write_run

PLAN = make_plan(("fast",))
TURN = {"apart_ns": [5, 6], "steps": 3}


def timed(trial, **timing):
    record = trial.document
    return replace(trial, document={**record, "timing": {**record["timing"], **timing}})


def line_of(trial):
    return trial.line().encode() + b"\n"


def swapped(line):
    """Return the line with its evidence before everything else in the record."""
    document = json.loads(line)
    record = document["record"]
    document["record"] = {"evidence": record.pop("evidence"), **record}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


SHAPES = {
    "as written": lambda line: line,
    "with spaces": lambda line: json.dumps(json.loads(line)).encode() + b"\n",
    "with another line break": lambda line: line[:-1] + b"\r\n",
    "with its evidence first": swapped,
    "with a member after its record": lambda line: line[:-2] + b',"wall_s":3.0}\n',
    "without evidence": lambda line: line[: line.index(b',"evidence":{')] + b"}}\n",
    "with a part in its evidence that is also one of records": lambda line: line.replace(
        b'"openmp":{', b'"openmp":{"x":1,"result":{},"profile":{},"system":{},"onednn":2,', 1
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_line_of_any_shape_is_read_as_the_slow_reader_does(shape):
    reader = LineReader()
    for number, trial in enumerate(make_trials(PLAN, Machine({}), 4), 1):
        line = shape(line_of(timed(trial, steps_ns=[], turns=[TURN])))
        found, slow = reader.read(line, None, number), trial_from_line(line.decode(), None, number)
        assert found.record == slow.record
        assert {name: value for name, value in vars(slow).items() if name in vars(found)} | {
            "record": found.record
        } == vars(found)


@pytest.mark.parametrize("turns", [[], [TURN], [{"steps": 20}], [TURN] * 2, [TURN, {"apart_ns": [7], "steps": 1}] * 3])
def test_turns_between_the_first_and_the_last_are_left_out(turns, tmp_path):
    (trial, *_) = make_trials(PLAN, Machine({}), 1)
    trial = replace(timed(trial, turns=turns), together=2)
    found = LineReader().read(line_of(trial), None, 1).record.timing
    assert [turn.model_dump(exclude_none=True) for turn in found.turns] == (
        turns if len(turns) < 3 else [turns[0], turns[-1]]
    )
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 0)
    folder.append(trial)
    assert read_measurements(folder, PLAN).facts == fold_trials(PLAN, [trial]).facts


def test_a_damaged_place_after_the_times_of_steps_is_named_by_its_column(tmp_path):
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 1)
    line = folder.trials_file.read_text().splitlines()[0].replace('"metrics":', '"metrics"?', 1)
    folder.trials_file.write_text(line + "\n")
    with pytest.raises(StoreError) as caught:
        read_measurements(folder, PLAN)
    assert str(caught.value).startswith(f"{folder.trials_file}:1:{line.index('?') + 1}: this line is damaged")


def test_evidence_is_counted_the_same_however_seldom_trials_share_it(monkeypatch):
    trials = []
    for trial in make_trials(PLAN, Machine({}), 30):
        evidence = trial.document["evidence"]
        openmp = {**evidence["openmp"], "threads": trial.block % 8}
        trials.append(replace(trial, document={**trial.document, "evidence": {**evidence, "openmp": openmp}}))
    usual = fold_trials(PLAN, trials)
    assert usual.facts["fast:cnn@local"].evidence["openmp.threads"]["..."] == 10
    monkeypatch.setattr(measurements, "_MAX_UNCOUNTED", 2)
    seldom = fold_trials(PLAN, trials)
    assert (seldom.facts, seldom.machine) == (usual.facts, usual.machine)
