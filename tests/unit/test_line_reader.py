"""The fast reader of trials.jsonl reads what the slow one reads, whatever a line looks like."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from envmatrix.errors import StoreError
from envmatrix.results.trial import Trial, TrialFacts, trial_from_line
from envmatrix.results.trial_line_reader import LineReader, read_facts
from envmatrix.stats import measurements
from envmatrix.stats.measurements import _row, fold_trials, read_measurements
from tests.synthetic import Machine, make_plan, make_trials, write_run

PLAN = make_plan(("fast",))
TURN = {"apart_ns": [5, 6], "steps": 3}


def timed(trial, **timing):
    record = trial.document
    return replace(trial, document={**record, "timing": {**record["timing"], **timing}})


def whole(trial):
    """Return a reading with the values of its system in one place."""
    system = trial.record.evidence and trial.record.evidence.system
    if isinstance(trial, Trial) or not trial.conditions or not system:
        return trial
    found = trial.conditions.model_dump(exclude_unset=True)
    evidence = trial.record.evidence.model_copy(update={"system": system.model_copy(update=found)})
    return replace(trial, record=trial.record.model_copy(update={"evidence": evidence}))


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
    "with unknown keys": lambda line: line.replace(b'"openmp":{', b'"y":2,"openmp":{', 1).replace(
        b'"record":{', b'"record":{"x":1,', 1
    ),
    "with a part in its evidence that is also one of records": lambda line: line.replace(
        b'"openmp":{', b'"openmp":{"x":1,"result":{},"profile":{},"system":{},"onednn":2,', 1
    ),
}


def assert_read_alike(reader, line, number):
    found, slow = reader.read(line, None, number), trial_from_line(line.decode(), None, number)
    assert _row(found, found.record) == pytest.approx(_row(slow, slow.record), rel=0, nan_ok=True)
    found = whole(found)
    assert found.record == slow.record
    facts = {name: value for name, value in vars(found).items() if name not in ("record", "conditions")}
    assert facts == {name: value for name, value in vars(slow).items() if name in facts}
    found = read_facts(line, None, number)
    assert [getattr(found, fact.name) for fact in fields(TrialFacts)] == [
        getattr(slow, fact.name) for fact in fields(TrialFacts)
    ]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_line_of_any_shape_is_read_as_the_slow_reader_does(shape):
    reader = LineReader()
    for number, trial in enumerate(make_trials(PLAN, Machine({}), 4), 1):
        assert_read_alike(reader, shape(line_of(timed(trial, steps_ns=[], turns=[TURN]))), number)


SYSTEM = '"system":{"kernel":"6.1","executable":"{cache}/python","uptime_s":1.5,"load_1m":0.3},'
SYSTEMS = {
    "as written": SYSTEM,
    "without what was there before": '"system":{"uptime_s":1.5,"mhz":3.0},',
    "with unknown keys": SYSTEM.replace('"kernel"', '"x":{"y":1},"kernel"').replace('"load_1m"', '"z":2,"load_1m"'),
    "with an object after the uptime": SYSTEM.replace('"load_1m"', '"y":{"z":2},"load_1m"'),
    "with a key like the uptime's in another part": '"system":{"kernel":"6.1"},"x":{"kernel":"6","uptime_s":1.5},',
    "with such a part inside it": '"system":{"x":{"kernel":"6.1","uptime_s":2.5},"load_1m":0.3},',
    "with the uptime twice": SYSTEM.replace('"load_1m"', '"uptime_s":2.5,"load_1m"'),
    "with a value after it twice": SYSTEM.replace('"uptime_s"', '"load_1m":9.5,"uptime_s"'),
    "with the load before it": '"system":{"load_1m":9.5,"uptime_s":1.5},',
    "without": '"x":{"kernel":"6.1","uptime_s":1.5},',
}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
def test_what_differs_in_the_system_of_trials_is_read_wherever_it_is(system):
    reader, (trial, *_) = LineReader(), make_trials(PLAN, Machine({}), 1)
    text = line_of(timed(trial, steps_ns=[])).decode()
    start = text.index('"system":{')
    for number in range(1, 5):
        line = text[:start] + system.replace("1.5", f"{number}.25") + text[text.index('"variables":{') :]
        assert_read_alike(reader, line.encode(), number)


@pytest.mark.parametrize("damage", ['"uptime_s":x', '"uptime_s":"1"', '"uptime_s":1.5,', '"uptime_s":1.5}'])
def test_damage_in_what_differs_between_trials_is_treated_as_the_slow_reader_does(damage, tmp_path):
    (trial, *_) = make_trials(PLAN, Machine({}), 1)
    text = line_of(timed(trial, steps_ns=[])).decode()
    start, end = text.index('"system":{'), text.index('"variables":{')
    good, bad = (
        text[:start] + SYSTEM.replace('"uptime_s":1.5', found) + text[end:] for found in ('"uptime_s":2', damage)
    )
    reader, answers = LineReader(), []
    for line in (good, good, good):
        reader.read(line.encode(), tmp_path, 1)
    for read in (lambda: reader.read(bad.encode(), tmp_path, 4), lambda: trial_from_line(bad, tmp_path, 4)):
        try:
            answers.append(whole(read()).record)
        except StoreError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]


def ordered(trial, number):
    """Return a line whose record has its members in the order of bench/, with conditions of its own."""
    record = timed(trial, steps_ns=[]).document
    first = {name: record[name] for name in ("schema", "bench", "workload", "skipped", "data", "result")}
    system = {"kernel": "6.1", "uptime_s": number + 0.25, "load_1m": 0.5}
    evidence = {**record["evidence"], "system": system, "packages": {}}
    return line_of(replace(trial, document={**first, **record, "evidence": evidence}))


def trained(folder):
    """Return a reader that knows the text around what is new in each line, and the next line."""
    reader, (trial, *_) = LineReader(), make_trials(PLAN, Machine({}), 1)
    for number in range(3):
        reader.read(ordered(trial, number), folder, number)
    return reader, ordered(trial, 4)


def test_the_text_around_what_is_new_in_a_line_is_parsed_three_times_only(tmp_path, monkeypatch):
    reader, line = trained(tmp_path)
    monkeypatch.delattr(LineReader, "_read_new")
    assert_read_alike(reader, line, 4)


OWN = b',"evidence":{'
DAMAGES = {
    "nothing of its own": lambda line: line[: line.index(b'"result":')] + line[line.index(OWN) :],
    "an empty member": lambda line: line.replace(OWN, b"," + OWN),
    "half a member": lambda line: line.replace(OWN, b',"profile":' + OWN),
    "a member twice": lambda line: line.replace(OWN, b',"skipped":"twice"' + OWN),
    "an invalid number": lambda line: line.replace(b'"major_faults":0', b'"major_faults":00'),
    "a number as text": lambda line: line.replace(b'"major_faults":0', b'"major_faults":"0"'),
    "no value of the uptime": lambda line: line.replace(b'4.25,"load_1m":0.5', b""),
    "no conditions": lambda line: line.replace(b'"uptime_s":4.25,"load_1m":0.5', b""),
    "too little of the text after them": lambda line: line.replace(b',"packages":{}', b""),
    "an unknown member": lambda line: line.replace(OWN, b',"x":1' + OWN),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_line_between_known_text_is_treated_as_the_slow_reader_does(damage, tmp_path):
    reader, line = trained(tmp_path)
    bad, answers = damage(line), []
    assert bad != line
    for read in (lambda: reader.read(bad, tmp_path, 4), lambda: trial_from_line(bad.decode(), tmp_path, 4)):
        try:
            answers.append(whole(read()).record)
        except StoreError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]


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
