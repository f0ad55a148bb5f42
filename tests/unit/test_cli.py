"""The command line: every mistake gives one clear message and the right exit code, never a traceback."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.cli import console_io
from envmatrix.cli.command_table import COMMANDS

MATRIX = """
version: 1
factors: {malloc: {glibc: {}, other: {env: {A: b}}}}
environments: {baseline: {}, other: {malloc: other}}
workloads: {cnn: {model: fashion-cnn}}
designs: {default: {environments: [other], workloads: cnn}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["benhc"], "did you mean 'bench'?"),
        (["--nonsense"], "--help"),
        (["bench", "--nonsense"], "unknown option --nonsense"),
        (["bench", "nosuch"], "no design 'nosuch'"),
        (["bench", "--environments", "othr"], "did you mean 'other'?"),
        (["bench", "--workloads", "cn"], "did you mean 'cnn'?"),
        (["bench", "--engine", "dokcer"], "no engine 'dokcer'"),
        (["bench", "--budget", "soon"], "--budget: 'soon' is no duration"),
        (["bench", "--target", "7"], "--target"),
        (["bench", "--seed", "-1"], "--seed"),
        (
            ["bench", "--min-blocks", "50", "--max-blocks", "5"],
            "--min-blocks: no verdict is possible: it needs 50 blocks",
        ),
        (["plan", "--min-blocks", "50"], "but at most 40 are run"),
        (["plan", "--matrix", "nosuch.yaml"], "the file does not exist"),
        (["plan", "--matrix", "."], "cannot be read"),
        (["report"], "no runs in results"),
        (["report", "nosuch"], "no run 'nosuch'"),
        (["resume", "nosuch"], "no run 'nosuch'"),
        (["evidence", "othr"], "did you mean 'other'?"),
        (["exec", "other"], "no command"),
        (["exec", "other", "--launcher", "slrum", "--", "true"], "did you mean 'slurm'?"),
        (["exec", "other", "--nodes", "2", "--", "true"], "--nodes means nothing to launcher here"),
        (["exec", "other", "--launcher", "ssh", "--nodes", "2", "--", "true"], "--nodes means nothing to launcher ssh"),
        (["evidence", "other", "--launcher", "ssh"], "--hosts"),
        (["export", "other", "--as", "poem"], "cannot be 'poem'"),
        (["init", "--output", "nosuch/x.yaml"], "-> pass a file in an existing folder"),
        (["bench", "--metric-regex", "", "--", "true"], "--metric-regex: it is empty"),
        (["compare", "a", "--fail-slower", "150%"], "--fail-slower: '150%' must be 0 or lie between"),
    ],
)
def test_a_mistake_is_told_with_exit_code_2(here, capsys, argv, words):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_what_is_asked_of_a_search_as_of_a_run_is_told_where_it_is(here, capsys):
    """Guards against `no run 'reference-tune'` with a suggestion of another run, if the name is that of a search."""
    (here / "results" / "mine" / "007-confirm-mine").mkdir(parents=True)
    for file in ("study.json", "007-confirm-mine/run.json"):
        (here / "results" / "mine" / file).write_text("{}")
    assert main(["figure", "forest", "mine"]) == 2
    said = capsys.readouterr().err
    assert "'mine' is a search (`envmatrix tune`), not a run" in said
    assert (
        "`envmatrix report mine` shows the search; for one of its steps: --results results/mine 007-confirm-mine"
        in said
    )
    assert main(["report", "mine", "--as", "csv"]) == 2
    assert "`envmatrix report --results results/mine STEP --as csv`" in capsys.readouterr().err


def test_check_names_every_mistake_for_people_and_programs(here, capsys):
    (here / "matrix.yaml").write_text(MATRIX.replace("env: {A: b}", "enw: {A: b}"))
    assert main(["check"]) == 2
    assert "matrix.yaml:3:39" in capsys.readouterr().err
    assert main(["check", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["mistakes"][0]["remedy"] == "did you mean 'env'?"


def test_check_knows_the_engines(here, capsys):
    (here / "matrix.yaml").write_text(MATRIX.replace("workloads: cnn}", "workloads: cnn, engines: [local, dokcer]}"))
    assert main(["check"]) == 2
    said = capsys.readouterr().err
    assert "matrix.yaml:" in said
    assert ": no engine 'dokcer'\n  -> did you mean 'docker'?" in said
    assert main(["check", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["mistakes"][0]
    line = (here / "matrix.yaml").read_text().splitlines()[found["line"] - 1]
    assert line[found["column"] - 1 :].startswith("dokcer")


@pytest.mark.parametrize(
    ("argv", "near"),
    [(["figure", "forrest"], "forest"), (["list", "factrs"], "factors"), (["schema", "--document", "matrx"], "matrix")],
)
def test_a_word_that_is_no_choice_names_the_nearest(here, capsys, argv, near):
    assert main(argv) == 2
    assert f"did you mean {near!r}?" in capsys.readouterr().err


def test_what_is_printed_can_go_to_a_file(here, capsys):
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert main(["schema", "--output", "schema.json"]) == 0
    assert (here / "schema.json").read_text() == printed
    assert main(["report", "--output", "report.csv"]) == 2
    assert "--as html --output report.csv" in capsys.readouterr().err


def test_check_and_list_and_plan_answer(here, capsys):
    for argv in (["check"], ["list"], ["plan"], ["list", "--json"], ["plan", "--json"], ["schema"]):
        assert main(argv) == 0
    assert "other" in capsys.readouterr().out


def test_every_command_has_help_and_a_completion(here, capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
    assert main(["completion", "bash"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)


def test_help_does_not_wait_for_heavy_imports():
    code = "import sys, envmatrix.cli.command_table as c; c._top_level_parser().format_help(); "
    code += "print([m for m in sys.modules if m in %r])"
    heavy = ("numpy", "scipy", "pydantic", "rich", "docker", "yaml", "jinja2", "mcp")
    argv = [sys.executable, "-c", code % (heavy,)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_bug_is_told_without_a_traceback_and_keeps_it_in_a_file(here, capsys, monkeypatch):
    monkeypatch.setattr("envmatrix.cli.list._design_text", lambda entry: 1 / 0)
    assert main(["list"]) == 2
    said = capsys.readouterr().err
    assert "this is a bug in envmatrix: ZeroDivisionError" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("text", ["", "import no_such_package"])
def test_a_file_that_hides_a_module_of_python_is_named_and_is_no_bug(tmp_path, text):
    (tmp_path / "random.py").write_text(text)
    path = f"{Path(__file__).parents[2]}{os.pathsep}{tmp_path}"
    argv = [sys.executable, "-m", "envmatrix", "list"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"{tmp_path}/random.py hides a module of Python's own library" in done.stderr


def test_a_command_passes_on_the_options_that_were_given_and_leaves_the_defaults_of_others():
    def function(run, results="results", group=7, *, progress, command=()):
        return run, results, group, progress, command

    arguments = Namespace(run=None, results="runs", group=None, command=["python"], json=True)
    passed = console_io.call(function, arguments)
    assert passed == (None, "runs", 7, console_io.print_progress, tuple(sys.argv[1:]))
    assert console_io.call(function, arguments, run="mine", group=0)[:3] == ("mine", "runs", 0)
    with pytest.raises(TypeError, match="run"):
        console_io.call(function, Namespace(results="runs"))


def test_long_sentences_are_folded_between_words_on_a_terminal_and_never_in_a_pipe(monkeypatch, capsys):
    line = "  cause: memory is returned to Linux and faulted in again"
    monkeypatch.setenv("COLUMNS", "40")
    console_io.print_folded(line)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console_io.print_folded(f"{line}\nshort")
    assert capsys.readouterr().out == "  cause: memory is returned to Linux and\n    faulted in again\nshort\n"


def test_a_folder_that_was_deleted_under_the_shell_is_told(here, tmp_path_factory, monkeypatch, capsys):
    gone = tmp_path_factory.mktemp("gone")
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["bench", "--", "true"]) == 2
    assert "-> the folder that you are in was deleted: `cd` to one that exists" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_a_place_that_can_hold_no_run_is_told_before_the_trial_run(here, capsys, command):
    (here / "results").write_text("a file")
    assert main([command, "--", "false"]) == 2
    assert f"no run can be stored in {here / 'results'}: it is a file\n  -> name another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--environments", "tcmaloc"], "no environment 'tcmaloc'"),
        (["--metric-regex", "it/s"], "has no group"),
        (["--metric-steps", "("], "not a valid regular expression"),
        (["--name", "a/b"], "--name: 'a/b' is not a valid name"),
        (["--name", 300 * "a"], "--name: 300 characters are too many"),
        (["--max-blocks", "2", "--min-blocks", "4"], "--min-blocks: "),
    ],
)
def test_a_mistake_that_can_be_seen_before_the_trial_run_is_told_before_it(here, capsys, options, said):
    (here / "matrix.yaml").unlink()
    assert main(["bench", *options, "--", sys.executable, "-c", "open('it-ran', 'w')"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "trial run" not in told
