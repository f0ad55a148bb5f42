"""The Python interface: fully documented, light to import, silent, with the same answers as the command line."""

import ast
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest

import envmatrix
from envmatrix.__main__ import main
from envmatrix.errors import ExitCode
from tests.synthetic import Machine, make_plan, write_run

PACKAGE = Path(envmatrix.__file__).parent
FUNCTIONS = [name for name in envmatrix.__all__ if inspect.isfunction(getattr(envmatrix, name))]
TYPES = [name for name in envmatrix.__all__ if inspect.isclass(getattr(envmatrix, name))]


@pytest.fixture
def results(tmp_path):
    machine = Machine({"baseline": 1.0, "fast": 1.3}, noise=0.01)
    for name in ("old", "new"):
        write_run(tmp_path / name, make_plan(("baseline", "fast")), machine, 8)
    return tmp_path


def test_the_whole_interface_is_there_and_no_room_has_one_of_its_names():
    assert sorted(envmatrix.__all__) == envmatrix.__all__
    wanted = {"run", "resume", "load", "effects", "compare", "history", "export", "reproduce", "rerun", "tune"}
    assert set(FUNCTIONS) == wanted
    assert {*FUNCTIONS, *TYPES, "__version__"} == set(envmatrix.__all__)
    rooms = {path.stem for path in PACKAGE.iterdir()}
    assert not rooms & {name for name in envmatrix.__all__ if not name.startswith("__")}
    assert set(envmatrix.__all__) <= set(dir(envmatrix))
    with pytest.raises(AttributeError, match="nosuch"):
        envmatrix.nosuch  # noqa: B018


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_it_takes_gives_and_raises(name):
    function = getattr(envmatrix, name)
    text, signature = inspect.getdoc(function), inspect.signature(function)
    arguments, _, rest = text.partition("Args:\n")[2].partition("Returns:\n")
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == list(signature.parameters)
    gives, _, raises = rest.partition("Raises:\n")
    assert gives.strip()
    errors = re.findall(r"^    (\w+): ", raises, re.MULTILINE)
    assert errors
    assert all(error in envmatrix.__all__ or error == "OSError" for error in errors)
    hints = typing.get_type_hints(function)
    assert set(hints) == {*signature.parameters, "return"}
    assert typing.Any not in hints.values()


@pytest.mark.parametrize("name", TYPES)
def test_every_type_and_what_it_offers_is_documented(name):
    kind = getattr(envmatrix, name)
    assert inspect.getdoc(kind)
    for member, value in vars(kind).items():
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{member}"
            assert "return" in inspect.get_annotations(getattr(value, "fget", value)), f"{name}.{member}"


def test_importing_envmatrix_waits_for_nothing_heavy():
    code = "import sys, envmatrix; print([m for m in sys.modules if m in %r])"
    heavy = ("numpy", "scipy", "pydantic", "rich", "docker", "yaml", "jinja2", "argparse")
    argv = [sys.executable, "-c", code % (heavy,)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_nothing_of_the_interface_prints_or_exits():
    for file in (PACKAGE / "api").rglob("*.py"):
        calls = {node.func.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
                 and isinstance(node.func, ast.Name)}  # fmt: skip
        assert not calls & {"print", "exit", "quit", "input"}, file


def test_a_run_is_loaded_with_its_effects_rows_and_trials(results, capsys):
    result = envmatrix.load("new", results=results)
    assert result.name == "new"
    assert [effect.environment for effect in result.effects] == ["control", "fast"]
    assert result.effects == envmatrix.effects(result) == envmatrix.effects("new", results=results)
    assert result.best.environment == "fast"
    assert result.best.low < 1.3 < result.best.high
    rows = result.rows()
    assert [(row["environment"], row["ratio"]) for row in rows] == [(e.environment, e.ratio) for e in result.effects]
    assert len(list(result.trials())) == 24
    assert result.outcomes == {"ok": 24}
    assert result.exit_code == 0
    assert "fast is 1.3" in str(result)
    assert "| fast" in result._repr_markdown_()
    memory = envmatrix.effects(result, metric="peak_rss_bytes")
    assert {effect.metric for effect in memory} == {"peak_rss_bytes"}
    assert capsys.readouterr() == ("", "")


def test_the_newest_run_is_meant_when_none_is_named(results):
    for newest, other in (("old", "new"), ("new", "old")):
        os.utime(results / other / "run.json", (1, 1))
        os.utime(results / newest / "run.json", (2, 2))
        assert envmatrix.load(results=results).folder.name == newest
    with pytest.raises(envmatrix.InputError, match="no runs in"):
        envmatrix.load(results=results / "old")


@pytest.mark.parametrize(
    ("outcomes", "incomplete", "interrupted", "code"),
    [
        ({"ok": 4}, 0, False, ExitCode.FINE),
        ({"ok": 4, "skipped": 2}, 0, False, ExitCode.FINE),
        ({"ok": 4, "timed_out": 1}, 0, False, ExitCode.SOME_FAILED),
        ({"ok": 4, "invalid": 1}, 0, False, ExitCode.SOME_FAILED),
        ({"ok": 4}, 1, False, ExitCode.SOME_FAILED),
        ({"failed": 4}, 0, False, ExitCode.NOTHING_RAN),
        ({}, 0, False, ExitCode.NOTHING_RAN),
        ({"failed": 4}, 0, True, ExitCode.INTERRUPTED),
    ],
)
@pytest.mark.parametrize("other_work", [False, True])
def test_a_result_has_the_exit_code_of_the_command(outcomes, incomplete, interrupted, code, other_work):
    found = envmatrix.Result(Path("r"), interrupted=interrupted, incomplete=incomplete)
    effects = [SimpleNamespace(environment="cheat", flags=("unequal-work",) if other_work else ())]
    analysis = SimpleNamespace(primary_effects=lambda: effects)
    found.__dict__["summary"] = SimpleNamespace(outcomes=outcomes, analysis=analysis)
    other = other_work and code in (ExitCode.FINE, ExitCode.SOME_FAILED)
    assert found.exit_code == (ExitCode.OTHER_WORK if other else code)


def test_runs_and_environments_are_compared(results, capsys):
    one = envmatrix.compare("new", environments=["baseline", "fast"], results=results)
    assert [item.status for item in one.items] == ["not slower"]
    assert one == envmatrix.compare(envmatrix.load("new", results=results), environments="baseline,fast")
    two = envmatrix.compare(results / "old", "new", allowed="3%", anyway=True, results=results)
    assert {item.allowed for item in two.items} == {0.03}
    gate = ["compare", "new", "--environments", "fast,baseline", "--results", str(results)]
    assert [main([*gate, *more]) for more in ([], ["--fail-slower", "0"])] == [ExitCode.FINE, ExitCode.SLOWER]
    capsys.readouterr()
    assert envmatrix.history(results).runs == 0, "no summary.json was written yet"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda at: envmatrix.load("nwe", results=at), "did you mean 'new'"),
        (lambda at: envmatrix.load("", results=at), "no run ''"),
        (lambda at: envmatrix.effects("new", metric="speed", results=at), "samples_per_s"),
        (lambda at: envmatrix.compare("new", results=at), "takes two environments"),
        (lambda at: envmatrix.compare("new", environments="a,b", results=at), "no environment 'a'"),
        (lambda at: envmatrix.compare("new", environments="baseline,fast", allowed="x", results=at), "no percentage"),
        (lambda at: envmatrix.run("nosuch", results=at), "no design 'nosuch'"),
        (lambda at: envmatrix.run(environments="tcmaloc", results=at), "did you mean 'tcmalloc'"),
        (lambda at: envmatrix.run(environments=[""], results=at), "no environment ''"),
        (lambda at: envmatrix.run(budget="soon", results=at), "'soon' is no duration"),
        (lambda at: envmatrix.run(budget=-1.0, results=at), "is no duration"),
        (lambda at: envmatrix.run(target=3, results=at), "between 0% and 100%"),
        (lambda at: envmatrix.run(seed=-1, results=at), "seed"),
        (lambda at: envmatrix.run(engines="dokcer", results=at), "no engine 'dokcer'"),
        (lambda at: envmatrix.run(name="a/b", results=at), "not a valid name"),
        (lambda at: envmatrix.run(matrix=at / "nosuch.yaml"), "the file does not exist"),
        (lambda at: envmatrix.resume("nosuch", results=at), "no run 'nosuch'"),
        (lambda at: envmatrix.export("tcmaloc"), "did you mean 'tcmalloc'"),
        (lambda at: envmatrix.export("tcmalloc", form="poem"), "unknown format 'poem'"),
        (
            lambda at: envmatrix.export("tcmalloc", matrix=at, run="r"),
            "--matrix and --run cannot be combined: a run has its own matrix",
        ),
        (lambda at: envmatrix.reproduce(at / "nosuch.tar.gz"), "no such archive:"),
        (
            lambda at: envmatrix.rerun(at / "nosuch", at / "nosuch"),
            "is not a matrix, a run, or a folder with a matrix.yaml",
        ),
        (lambda at: envmatrix.reproduce(at / "nosuch.tar.gz", tolerance="x"), "tolerance: 'x' is no percentage"),
        (lambda at: envmatrix.history(at / "nosuch"), "no such folder"),
    ],
)
def test_a_mistake_is_an_error_of_the_package_with_a_remedy(results, capsys, monkeypatch, ask, words):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(results / "cache"))
    with pytest.raises(envmatrix.InputError) as caught:
        ask(results)
    assert words in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_the_command_line_and_the_interface_answer_alike(results, capsys):
    assert main(["compare", "new", "--environments", "baseline,fast", "--results", str(results)]) == 0
    found = envmatrix.compare("new", environments="baseline,fast", results=results)
    assert capsys.readouterr().out.splitlines() == found.lines()
