"""An engine, a launcher and a report from another package, in every command, and messages about broken ones.

The package is tests/plugins/envmatrix_toy, with a dist-info folder as written by pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.build.paths import project_paths
from envmatrix.cli.command_table import COMMANDS
from envmatrix.engines.catalog import DEFAULT, ENGINES, find_engine
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import LAUNCHERS
from envmatrix.matrix import Design
from envmatrix.report.catalog import FIGURES, REPORTS
from envmatrix.system.plugins import Catalog, ExtensionError, import_target

PLUGINS = Path(__file__).parents[1] / "plugins"
#: These take no engine, launcher, run or report.
ELSEWHERE = {"init", "selftest", "schema", "definitions", "docs", "context", "check", "mcp"}
MATRIX = """
version: 1
factors: {torch: {mine: {interpreter: python3}}, speed: {plain: {}, fast: {env: {SPEED: "2"}}}}
environments: {baseline: {}, fast: {speed: fast}}
workloads: {mine: {command: [python, work.py], files: PROGRAM, metric: {regex: 'speed: ([0-9.]+)', better: higher}}}
designs: {default: {environments: [fast], workloads: mine, engines: [toy], min_blocks: 2, max_blocks: 2}}
"""
WORK = "import os; print('speed:', 3 + float(os.environ.get('SPEED', '1')))\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a project whose design runs on the toy engine, with the toy package installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOY_PYTHON", os.environ.get("BENCH_PYTHON", sys.executable))
    monkeypatch.syspath_prepend(str(PLUGINS))
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("PROGRAM", str(tmp_path / "program")))
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "work.py").write_text(WORK)
    return tmp_path


def asks_about_the_toys(envmatrix):
    assert "of envmatrix-toy 1.0; builds images; has image files; runs as a command" in envmatrix("list", "engines")
    assert "of envmatrix-toy 1.0; shows its scripts" in envmatrix("list", "launchers")
    assert "of envmatrix-toy 1.0; writes report.toy.txt" in envmatrix("list", "reports")
    assert "is valid" in envmatrix("check")
    assert "fast:mine@toy" in envmatrix("plan")
    doctor = envmatrix("doctor")
    assert "engine toy: ready" in doctor
    assert "launcher toy: ready" in doctor
    assert "report toy: of envmatrix-toy 1.0" in doctor


def builds_and_exports_with_the_toys(project, envmatrix):
    assert "mine@toy: " in envmatrix("build", "--engine", "toy")
    assert f"toy-start {project}/containers/fast.toy" in envmatrix("build", "fast", "--engine", "toy")
    assert (project / "containers" / "fast.toy").read_text() == "the image of fast\n"
    envmatrix("lock", "--engine", "toy")
    envmatrix("exec", "fast", "--engine", "toy", "--", "python", "-c", "open('said', 'w').write('it ran')")
    assert (project / "said").read_text() == "it ran"
    assert "export SPEED=2" in envmatrix("export", "fast", "--engine", "toy")
    assert envmatrix("export", "fast", "--engine", "toy", "--as", "toy-script") == "# toy-script: fast on toy\n"
    assert "exec toy-start " in envmatrix("export", "fast", "--engine", "toy", "--as", "slurm")
    if "BENCH_PYTHON" in os.environ:
        assert "torch" in envmatrix("evidence", "fast", "--all", "--engine", "toy")
    else:
        assert "cannot import torch" in envmatrix("evidence", "fast", "--engine", "toy", code=2)


def runs_and_reads_with_the_toys(project, envmatrix):
    assert "toy script of dry" in envmatrix("bench", "--launcher", "toy", "--dry-run", "--name", "dry")
    installed("bench", "--launcher", "toy", "--mark", "hello", "--time", "2m", "--name", "one", "--quiet")
    folder = project / "results" / "one"
    noted = (folder / "toy-launcher.txt").read_text().splitlines()
    assert [line.split()[0] for line in noted[:3]] == ["b0000-p002", "b0000-p001", "b0000-p000"]
    assert "'mark': 'hello'" in noted[0]
    assert "'time': 120.0" in noted[0]
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert {(trial["engine"], trial["outcome"]) for trial in trials} == {("toy", "ok")}
    told = "toy report of one for baseline: baseline control fast"
    assert (folder / "report.toy.txt").read_text().startswith(told)
    envmatrix("resume", "one", "--mark", "again")
    assert envmatrix("report", "one", "--as", "toy").startswith(told)
    assert "SVG" in envmatrix("figure", "forest", "one").upper()
    assert "fast" in envmatrix("compare", "one", "--environments", "baseline,fast")
    assert "fast" in envmatrix("explain", "one")
    assert "SPEED" in envmatrix("diff", "baseline", "fast", "--run", "one")
    envmatrix("history")
    assert "added" in envmatrix("atlas", "add", "one")
    assert "toy" in envmatrix("completion", "bash")


def packs_and_searches_with_the_toys(project, envmatrix):
    envmatrix("pack", "one", "--images", "--output", "one.tar.gz")
    again = envmatrix("reproduce", "one.tar.gz", "--launcher", "toy", "--quiet", "--mark", "there")
    assert "image torch-mine on toy: " in again
    assert "from the pack" in again
    assert "reproduced" in again
    newest = max((project / "results").glob("default-*"), key=lambda path: path.stat().st_mtime)
    assert "'mark': 'there'" in (newest / "toy-launcher.txt").read_text()
    assert "node-1" not in envmatrix("redact", "one")
    # A search begins on the toy engine; its first step measures the duration of a trial.
    assert "cannot confirm anything" in envmatrix("tune", "default", "--budget", "1s", "--name", "search", code=2)
    assert '"engine":"toy"' in (project / "results" / "search" / "001-evidence-search" / "trials.jsonl").read_text()


@pytest.mark.timeout(300)
def test_the_toys_are_used_in_every_command(project, capsys):
    used = set()

    def envmatrix(*argv, code=0):
        used.add(argv[0])
        assert main(list(argv)) == code, (argv, capsys.readouterr())
        said = capsys.readouterr()
        return said.out + said.err

    asks_about_the_toys(envmatrix)
    builds_and_exports_with_the_toys(project, envmatrix)
    runs_and_reads_with_the_toys(project, envmatrix)
    packs_and_searches_with_the_toys(project, envmatrix)
    assert used == set(COMMANDS) - ELSEWHERE | {"check"}


def test_the_words_of_the_toys_are_unknown_where_they_are_not_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("engines: [toy]", "engines: [local]"))
    assert main(["plan", "--engine", "tocker"]) == 2
    assert "no engine 'tocker'\n  -> did you mean 'docker'?" in capsys.readouterr().err
    assert main(["bench", "--launcher", "slrum"]) == 2
    assert "no launcher 'slrum'\n  -> did you mean 'slurm'?" in capsys.readouterr().err
    assert main(["bench", "--partition", "gpu"]) == 2
    assert "--partition means nothing to launcher here" in capsys.readouterr().err


def test_the_preferred_engine_is_the_one_that_is_here(project, monkeypatch, capsys):
    for name in ("DockerEngine", "PodmanEngine", "ApptainerEngine", "LocalEngine"):
        monkeypatch.setattr(f"envmatrix.engines.{name[:-6].lower()}.{name}.unavailable", lambda self: "not today")
    toy = import_target("envmatrix_toy.engine:ToyEngine")
    monkeypatch.setattr(toy, "preference", 9)
    assert main(["plan", "--engine", "auto"]) == 0
    assert "engine auto: toy" in capsys.readouterr().err
    monkeypatch.setenv("TOY_IS_AWAY", "it is away")
    assert main(["plan", "--engine", "auto"]) == 0
    assert "mine@local" in capsys.readouterr().out


def installed(*argv):
    """Run the real command in a process with the toy package installed."""
    path = os.pathsep.join([str(PLUGINS), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "envmatrix", *argv], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def install(folder, monkeypatch, code, group="envmatrix.engines", points="odd = odd:Odd", name="odd-things"):
    """Install a package with one module, ``odd``."""
    information = folder / f"{name.replace('-', '_')}-2.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (information / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
    if code:
        (folder / "odd.py").write_text(code)
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (", "SyntaxError"),
        ("y = 1", "AttributeError: module 'odd' has no attribute 'Odd'"),
        ("Odd = 3", "TypeError: odd:Odd is not callable"),
        ("class Odd: pass", "TypeError"),
        (
            "class Odd:\n    def __init__(self, places): pass",
            "odd:Odd lacks holds, inside, isolation, name, passes_input",
        ),
        ("def Odd(places): raise OSError('gone')", "OSError: gone"),
    ],
)
def test_a_broken_engine_names_its_distribution_and_stops_nothing_else(project, monkeypatch, capsys, code, why):
    install(project / "site", monkeypatch, code)
    assert main(["plan", "--engine", "odd"]) == 0
    assert main(["build", "--engine", "odd"]) == 2
    said = capsys.readouterr().err
    assert "engine 'odd' of odd-things 2.0 cannot be used: " in said
    assert why in said
    assert "-> update that package, or uninstall it: python -m pip uninstall odd-things" in said
    assert main(["doctor"]) == 0
    assert "BAD  engine odd: engine 'odd' of odd-things 2.0 cannot be used" in capsys.readouterr().out
    assert main(["plan", "--engine", "auto"]) == 0


def test_an_engine_that_calls_itself_otherwise_is_refused(project, monkeypatch):
    code = "from envmatrix_toy.engine import ToyEngine\nclass Odd(ToyEngine):\n    pass\n"
    install(project / "site", monkeypatch, code)
    with pytest.raises(ExtensionError, match=r"engine 'odd' of odd-things 2\.0 cannot be used: its own name is 'toy'"):
        find_engine("odd")


def test_what_is_built_in_cannot_be_replaced(project, monkeypatch, capsys):
    points = "docker = odd:Odd\nauto = odd:Odd\nBad@Name = odd:Odd"
    install(project / "site", monkeypatch, "raise SystemExit", points=points)
    assert type(find_engine("docker")).__module__ == "envmatrix.engines.docker"
    assert ENGINES.names() == (*ENGINES.built_in, "toy")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "engine 'docker' of odd-things 2.0 is ignored: envmatrix already has one with that name" in said
    assert "engine 'auto' of odd-things 2.0 is ignored" in said
    assert "engine 'Bad@Name' of odd-things 2.0 is ignored: a name consists of lower-case letters" in said


def test_a_name_that_two_packages_add_is_nobodys(project, monkeypatch):
    install(project / "site", monkeypatch, "", points="toy = odd:Odd")
    with pytest.raises(ExtensionError, match=r"several packages provide engine .toy.: .*odd-things 2\.0") as caught:
        find_engine("toy")
    assert caught.value.remedy == "uninstall all but one of them"


def test_a_broken_launcher_or_report_leaves_the_run_its_own(project, monkeypatch, capsys):
    code = (
        "from envmatrix.report.catalog import Report\n"
        "class Odd(Report):\n    name, file = 'odd', 'odd.txt'\n"
        "    def render(self, summary, environment): return 1 / 0\n"
    )
    install(project / "site", monkeypatch, code, group="envmatrix.reports")
    launchers = {"group": "envmatrix.launchers", "points": "bad = none:None", "name": "bad-things"}
    install(project / "site2", monkeypatch, "", **launchers)
    assert main(["bench", "--quiet", "--name", "one"]) == 0
    assert "report 'odd' of odd-things 2.0 failed: ZeroDivisionError" in capsys.readouterr().err
    assert (project / "results" / "one" / "report.html").exists()
    assert not (project / "results" / "one" / "odd.txt").exists()
    assert main(["report", "one", "--as", "odd"]) == 2
    assert "report 'odd' of odd-things 2.0 failed: ZeroDivisionError" in capsys.readouterr().err
    assert main(["bench", "--launcher", "bad"]) == 2
    assert "launcher 'bad' of bad-things 2.0 cannot be used: ModuleNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["run.json", "report.html", "../outside.txt", "a/b.txt"])
def test_a_report_of_another_package_writes_no_file_but_a_new_one(project, monkeypatch, capsys, file):
    code = (
        "from envmatrix.report.catalog import Report\n"
        f"class Odd(Report):\n    name, file = 'odd', {file!r}\n"
        "    def render(self, summary, environment): return 'x'\n"
    )
    install(project / "site", monkeypatch, code, group="envmatrix.reports")
    assert main(["bench", "--quiet", "--name", "one"]) == 0
    assert f"report odd of odd-things 2.0 is not written: {file!r} is no free file name" in capsys.readouterr().err
    assert not (project / "results" / "outside.txt").exists()
    assert (project / "results" / "one" / "run.json").read_text() != "x"


def test_a_launchers_option_that_means_something_else_is_refused(project, monkeypatch, capsys):
    code = (
        "from envmatrix.launchers.base import LauncherKind, Option\n"
        "class Odd(LauncherKind):\n    name = 'odd'\n    options = (Option('seed', 'N', 'a seed'),)\n"
        "    def open(self, experiment, say, ask): ...\n"
    )
    install(project / "site", monkeypatch, code, group="envmatrix.launchers")
    assert main(["bench"]) == 2
    assert "launcher odd defines --seed, which already has another meaning here" in capsys.readouterr().err


def test_what_is_built_in_can_be_made_and_is_what_its_protocol_says():
    for name in ENGINES.built_in:
        assert find_engine(name).name == name
    for catalog in (LAUNCHERS, REPORTS):
        for name in catalog.built_in:
            assert catalog.make(name).name == name
    assert all(callable(import_target(target)) for target in FIGURES.values())
    assert Design.model_fields["engines"].default == (DEFAULT,)
    assert project_paths().cache.root


def test_no_entry_point_is_looked_for_when_a_name_is_built_in(monkeypatch):
    def looked(self):
        raise AssertionError

    monkeypatch.setattr(Catalog, "_added", looked)
    assert find_engine("local").name == "local"
    assert LAUNCHERS.make("here").name == "here"
    assert REPORTS.make("csv").name == "csv"
    with pytest.raises(AssertionError):
        ENGINES.names()
    monkeypatch.undo()
    with pytest.raises(InputError, match="no engine 'lokal'"):
        find_engine("lokal")
