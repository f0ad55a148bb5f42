"""The list of workload options, and the command line made from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import arguments, options
from bench.__main__ import main
from bench.errors import BenchError

ROOT = Path(__file__).parents[2]
LISTED = json.loads((ROOT / "bench" / "options.json").read_text())
TEXT_OF_RULES = {rule["message"].split()[0] for rule in LISTED["rules"]}
TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list-of-int": list}


@pytest.mark.parametrize("option", LISTED["options"], ids=lambda option: option["name"])
def test_every_listed_option_is_complete_and_its_default_is_legal(option):
    assert option["type"] in TYPES
    assert option["help"]
    assert option["group"]
    if option["default"] is None:
        assert option["optional"]
    else:
        assert type(option["default"]) is TYPES[option["type"]]
    as_text = "none" if option["default"] is None else json.dumps(option["default"]).strip('"[]')
    assert options.convert(option, as_text) == option["default"]


def test_every_rule_names_listed_options_and_listed_choices():
    listed = {option["name"]: option for option in LISTED["options"]}
    for rule in LISTED["rules"]:
        assert rule["message"]
        for name, allowed in rule["require"].items():
            assert set(allowed) <= set(listed[name].get("choices") or allowed)
        for name, test in rule["when"].items():
            assert set(test) <= {"is", "not", "above"}
            for value in [*test.get("is", []), *test.get("not", [])]:
                assert value in (listed[name].get("choices") or [value])


def test_the_defaults_break_no_rule():
    assert arguments.from_texts({}) == options.defaults()


@pytest.mark.parametrize("name", [option["name"] for option in LISTED["options"]])
@given(text=st.text(max_size=20))
def test_any_text_for_any_option_is_a_legal_value_or_one_clear_error(name, text):
    problem = None
    try:
        json.dumps(arguments.from_texts({name: text}), allow_nan=False)
    except BenchError as error:
        problem = str(error)
    assert problem is None or problem.startswith("--") or problem.split()[0] in TEXT_OF_RULES


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--batchsize", "64"], ["--batchsize", "did you mean --batch-size"]),
        (["run", "--batch-size", "many"], ["--batch-size must be a whole number, not 'many'"]),
        (["run", "--batch-size", "0"], ["at least 1"]),
        (["run", "--collective-sizes", ""], ["at least one whole number"]),
        (["evidnce"], ["did you mean evidence"]),
        (["run", "--model", "fashion-cmn"], ["did you mean fashion-cnn"]),
        (["run", "--learning-rate", "nan"], ["finite"]),
        (["run", "--workers", "2", "--loader", "memory"], ["workers", "dataloader", "here loader is"]),
        (["run", "--record", "/nowhere/at/all.json"], ["no folder /nowhere/at"]),
        (["data"], ["--data-dir"]),
        (["data", "--data-dir", "/tmp", "--data", "imagenet"], ["imagenet", "fashion-mnist"]),
    ],
)
def test_a_bad_command_line_is_one_clear_line_and_status_2(argv, words, capsys):
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    for word in words:
        assert word in shown.err


def test_help_lists_every_option_with_its_default():
    shown = subprocess.run(
        [sys.executable, "-m", "bench", "run", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for option in LISTED["options"]:
        assert "--" + option["name"].replace("_", "-") in shown.stdout
    assert "(default: 64)" in shown.stdout
