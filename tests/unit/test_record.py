"""Every record ever committed can be read completely, and an odd value affects only itself."""

import json
import time

import pytest

from bench import evidence as written
from bench.evidence import machine, onednn, process_tree_watch, program_from_outside
from envmatrix.evidence.evidence_models import Evidence, OneDnn
from envmatrix.evidence.trial_record import Record, RecordError, read_evidence, read_record
from envmatrix.system.regular_files import read_lines
from tests.committed import REFERENCES
from tests.unknown_keys import unknown_keys

RUNS = sorted(path / "trials.jsonl" for path in REFERENCES)


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.parent.name)
def test_every_committed_record_is_read_whole(file):
    records = [json.loads(line)["record"] for line in read_lines(file)]
    assert records
    for body in filter(None, records):
        record = read_record(body)
        assert list(unknown_keys(record)) == []
        assert record.model_dump(mode="json", by_alias=True, exclude_unset=True) == body


def test_the_runs_of_schema_1_are_there():
    assert len(RUNS) >= 6


def test_every_part_that_bench_reads_without_torch_is_in_the_model():
    first = written.before_torch()
    parts = written.collect(first, machine.affinity())
    assert list(unknown_keys(read_evidence(parts))) == []
    assert all(parts[name] for name in ("cpu", "memory", "sandbox", "system", "libraries", "variables"))
    seen = read_evidence(dict(program_from_outside.evidence(process_tree_watch.Program(1, "init")), source="outside"))
    assert list(unknown_keys(seen)) == []
    assert seen.cpu.model == machine.cpu()["model"]
    assert list(unknown_keys(OneDnn.model_validate(onednn.described("")))) == []


def test_keys_of_a_newer_bench_are_kept():
    body = {"schema": 1, "new": 1, "evidence": {"new": {"a": [1]}, "openmp": {"new": "x"}}}
    record = read_record(body)
    assert sorted(unknown_keys(record)) == ["evidence.new", "evidence.openmp.new", "new"]
    assert record.model_dump(mode="json", by_alias=True, exclude_unset=True) == body


@pytest.mark.parametrize(
    ("body", "left"),
    [({"evidence": {"cpu": {"logical": "two", "model": "x"}}}, {"evidence": {"cpu": {"model": "x"}}}),
     ({"evidence": {"cpu": {"affinity_after": [0, "x"]}}}, {"evidence": {"cpu": {}}}),
     ({"evidence": {"xla": {"a": 1}, "cuda": {"devices": [{"name": 1, "uuid": "u"}]}}},
      {"evidence": {"xla": {"a": 1}, "cuda": {"devices": [{"uuid": "u"}]}}}),
     ({"evidence": {"malloc": {"options": {"a": {}, "b": 1}}}}, {"evidence": {"malloc": {"options": {"b": 1}}}}),
     ({"evidence": {"cuda": {"devices": [{"uuid": "u"}, 7]}}}, {"evidence": {"cuda": {}}}),
     ({"metrics": {"a": 1, "b": "fast", "c": [1]}}, {"metrics": {"a": 1}}), ({"timing": [], "data": 3}, {}),
     ({"result": {"loss": True, "steps": 2.5, "samples": 1}}, {"result": {"samples": 1}}),
     ({"metrics": {"a": 10**400}}, {"metrics": {"a": 10**400}})],
)  # fmt: skip
def test_what_is_odd_is_left_out_and_nothing_else(body, left):
    record = read_record({"schema": 1, **body})
    assert record.model_dump(by_alias=True, exclude_unset=True) == {"schema": 1, **left}


def test_a_loss_that_is_no_number_stays_one():
    assert str(read_record(json.loads('{"schema": 1, "result": {"loss": NaN}}')).result.loss) == "nan"


@pytest.mark.parametrize("body", [None, [], 1, "x", {}, {"schema": "1"}, {"schema": True}, {"schema": 1, "skipped": 3}])
def test_what_is_no_record_is_refused(body):
    with pytest.raises(RecordError):
        read_record(body)


def test_a_hundred_thousand_records_are_read_in_seconds():
    body = json.loads(next(read_lines(RUNS[0])))["record"]
    start = time.process_time()
    for _ in range(1000):
        read_record(body)
    assert time.process_time() - start < 0.3


def test_the_json_schema_follows_from_the_models():
    schema = Record.model_json_schema()
    assert schema["required"] == ["schema"]
    assert set(Evidence.model_fields) == set(schema["$defs"]["Evidence"]["properties"])


def test_a_name_that_is_no_text_is_left_out_and_no_more():
    evidence = {"variables": {"A": "1", "\udcff": "2"}, "libraries": ["/lib/a.so"], "\udcff": 1}
    found = read_record({"schema": 1, "bench": {"digest": "x"}, "evidence": evidence})
    assert (found.evidence.variables, found.evidence.libraries) == ({"A": "1"}, ["/lib/a.so"])
