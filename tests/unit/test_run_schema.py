"""The schema of run.json matches what is written; other programs rely on it alone."""

import json
from pathlib import Path

import jsonschema
import pytest

from envmatrix.results import Change, RunFolder
from envmatrix.results.schema import json_schema
from tests.committed import REFERENCES
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, write_run

PROJECT = Path(__file__).parents[2]


def check(document, name="Run"):
    jsonschema.validate(document, {**json_schema(), "$ref": f"#/$defs/{name}"})


def test_the_committed_schema_is_that_of_the_types():
    committed = json.loads((PROJECT / "docs" / "run.schema.json").read_text())
    assert committed == json_schema(), "run: envmatrix schema --document run > docs/run.schema.json"


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_what_is_written_of_a_real_run_fits_the_schema(reference, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(RunFolder(reference).load(), MATRIX_TEXT)
    check(json.loads(folder.run_file.read_text()))


def test_lines_of_trials_and_of_the_history_fit_the_schema(tmp_path):
    folder = write_run(tmp_path / "run", make_plan(("a",)), Machine({}, outcome={"a": "failed"}), 2)
    folder.change(Change(at="now", envmatrix="0", budget=600.0, was={"budget": "300"}))
    for line in folder.trials_file.read_text().splitlines():
        check(json.loads(line), "Trial")
    check(json.loads(folder.history_file.read_text()), "Change")


@pytest.mark.parametrize(
    ("path", "value"),
    [(("colour",), 1), (("schema",), 1), (("design", "min_blocks"), 1), (("arms", 0, "engine"), 3), (("host",), None)],
)
def test_the_schema_refuses_what_reading_refuses(tmp_path, path, value):
    folder = write_run(tmp_path / "run", make_plan(("a",)), Machine({}), 0)
    body = json.loads(folder.run_file.read_text())
    part = body
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check(body)
