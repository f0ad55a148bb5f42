"""The gate: one exit code per answer, the same in the command, its JSON, JUnit, the help, the docs and Python."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest

import envmatrix
from envmatrix.__main__ import main
from envmatrix.cli.command_table import COMMANDS, _top_level_parser, command_parser
from envmatrix.errors import ExitCode, most_important_code
from envmatrix.runner.reproduction.reproduced_effects import Reproduction
from tests.synthetic import Machine, make_plan, make_run, write_run

ROOT = Path(__file__).parents[2]
PLAN = make_plan(("cheat", "slow", "alike", "wild"))
MACHINE = Machine({"cheat": 3.0, "slow": 0.8}, noise=0.01, loss={"cheat": 5.0})
STRICT = ("--fail-slower", "3%", "--fail-undecided")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a folder with a quiet run, a noisy run, and stored runs; the newer one did other work."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "results" / "run", PLAN, MACHINE, 10)
    write_run(tmp_path / "results" / "noisy", PLAN, Machine({}, noise=0.5), 10)
    for day in range(3):
        write_run(tmp_path / "good" / f"day-{day}", PLAN, Machine({}, noise=0.01), 10, seed=day + 2)
    write_run(tmp_path / "results" / "new", PLAN, MACHINE, 10, seed=7)
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("run", "--environments", "baseline,slow", "--fail-slower", "3%"), 5, "slower"),
        (("run", "--environments", "baseline,slow"), 0, "slower"),
        (("run", "--environments", "baseline,alike", *STRICT), 0, "not slower"),
        (("run", "--environments", "baseline,cheat", "--fail-slower", "3%"), 7, "other work"),
        (("run", "--environments", "baseline,cheat"), 7, "other work"),
        (("run", "--environments", "cheat,baseline", *STRICT), 7, "other work"),
        (("noisy", "--environments", "baseline,alike", "--fail-slower", "3%"), 0, "cannot say"),
        (("noisy", "--environments", "baseline,alike", *STRICT), 6, "cannot say"),
        (("good/day-2", "new", "--environments", "cheat", "--fail-slower", "30%"), 7, "other work"),
        (("good/day-2", "new", "--environments", "slow", "--fail-slower", "3%"), 5, "slower"),
        (("good/day-2", "new", "--fail-slower", "3%"), 7, "other work"),
        (("run", "noisy", "--environments", "alike", *STRICT), 6, "cannot say"),
    ],
)
def test_each_answer_has_its_exit_code_in_the_command_the_json_and_junit(results, capsys, words, code, status):
    assert main(["compare", *words, "--quiet", "--junit", "gate.xml"]) == code
    assert status in capsys.readouterr().out
    assert main(["compare", *words, "--quiet", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    assert status in {item["status"] for item in told["comparisons"]}
    suite = ET.parse("gate.xml").getroot().find("testsuite")
    kinds = {kind.get("type") for tag in ("failure", "skipped") for kind in suite.iter(tag)}
    assert kinds >= {status.replace(" ", "-")} - {"not-slower"}
    failures = len(list(suite.iter("failure")))
    assert int(suite.get("failures")) == failures
    assert bool(failures) == (status in ("slower", "other work") or code == 6)


def test_python_has_the_same_answers(results):
    cheat = envmatrix.compare("run", environments="baseline,cheat", allowed="3%")
    assert (cheat.exit_code, cheat.items[0].status) == (7, "other work")
    assert "no comparison: cheat did other work than baseline" in cheat.lines()[0]
    noisy = envmatrix.compare("noisy", environments="baseline,alike", allowed="3%")
    assert (noisy.exit_code, noisy.gate(fail_undecided=True)) == (0, 6)
    assert envmatrix.load("run").exit_code == 7
    assert envmatrix.load("run").other_work == ("cheat",)
    assert envmatrix.load("noisy").exit_code == 0


def test_to_fail_what_is_undecided_takes_a_gate(results, capsys):
    assert main(["compare", "run", "--environments", "baseline,slow", "--fail-undecided"]) == 2
    assert "add --fail-slower 3%" in capsys.readouterr().err
    assert main(["compare", "run", "--environments", "baseline,slow", "--junit", "nowhere/gate.xml"]) == 2
    told = capsys.readouterr()
    assert ("no such folder: nowhere" in told.err, told.out) == (True, ""), "before anything is measured"
    assert main(["compare", "run", "--environments", "baseline,slow", "--junit", str(results)]) == 2
    told = capsys.readouterr()
    assert (f"-> --junit {results}/compare.xml" in told.err, told.out) == (True, "")


def test_of_several_codes_the_first_of_the_documented_order_is_used():
    page = (ROOT / "docs" / "how-to" / "gate.md").read_text()
    order = [int(code) for code in re.search(r"the first of these is used: ([0-9, ]+)\.", page)[1].split(", ")]
    assert order == [130, 2, 4, 7, 5, 6, 3]
    for first, second in combinations(order, 2):
        assert most_important_code(ExitCode(second), ExitCode.FINE, ExitCode(first)) == first
    assert most_important_code() == most_important_code(ExitCode.FINE) == 0


def test_every_list_of_exit_codes_names_them_all():
    page = (ROOT / "docs" / "how-to" / "gate.md").read_text()
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", page.partition("## Exit codes")[2], re.MULTILINE)}
    help_text = {
        int(code) for code in re.findall(r"[:,]\s(\d+) [a-z]", _top_level_parser().epilog.partition("exit codes")[2])
    }
    assert table == help_text == {int(code) for code in ExitCode}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_names_an_exit_code_that_there_is_not(command):
    text = command_parser(command).format_help().partition("exit codes:")[2]
    known = {int(code) for code in ExitCode} | ({124} if command == "exec" else set())
    assert {int(code) for code in re.findall(r"\b(\d+)\b(?! ?%)", text)} <= known


@pytest.mark.parametrize(
    ("answers", "flags", "codes"),
    [
        (("reproduced",), (), (0, 0)),
        (("reproduced", "undecided"), (), (0, 6)),
        (("not reproduced", "undecided"), (), (3, 6)),
        (("undecided",), ("unequal-work",), (7, 7)),
        (("not reproduced",), ("unequal-work",), (7, 7)),
    ],
)
def test_a_reproduction_has_the_same_codes(answers, flags, codes):
    run, second = make_run(PLAN), SimpleNamespace(flags=flags)
    effects = tuple(SimpleNamespace(answer=answer, second=second) for answer in answers)
    found = Reproduction(run, run, (), effects, 0.05)
    assert (found.exit_code, found.gate(fail_undecided=True)) == codes
