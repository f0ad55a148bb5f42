"""A Python from an environment module: Lmod or Environment Modules, whichever is installed, with test modules."""

import json
import os
import sys

import pytest

from envmatrix.build import modules
from envmatrix.errors import SkipEnvironmentError
from tests.module_tree import module_tree

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]
MATRIX = """
version: 2
factors:
  stack:
    here: {interpreter: PYTHON}
    site: {modules: Stack/2.0}
    absent: {modules: [Stack/2.0, Absent/9]}
  word: {none: {}, some: {env: {STACK_SPEED: "30"}}}
environments:
  baseline: {}
  site: {stack: site}
  set: {stack: site, word: some}
  absent: {stack: absent}
workloads:
  mine: {command: [python, train.py], metric: {regex: 'speed ([0-9.]+)', better: higher}, files: mine}
designs:
  one: {environments: [site, set, absent], workloads: mine, max_blocks: 1}
"""
PROGRAM = """
import json, os, sys
print("speed", os.environ.get("STACK_SPEED", "10"))
print("said", json.dumps({"python": sys.executable, "loaded": os.environ.get("LOADEDMODULES")}))
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("LMOD_", "MODULES_"))]:
        monkeypatch.delenv(name)
    home, places = module_tree(tmp_path)
    monkeypatch.setenv("MODULEPATH", str(tmp_path / "tree"))
    monkeypatch.setenv("MODULESHOME", str(home))
    return places


def test_a_module_says_what_it_sets_and_nothing_else_gets_in(tree, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
    loaded = modules.load_modules(["Stack/2.0"])
    assert loaded.names == ("Stack/2.0",)
    assert loaded.variables == {
        "PATH": str(tree["bin"]), "PYTHONPATH": str(tree["lib"]), "STACK_SPEED": "20", "STACK_SAYS": "a 'b' $",
    }  # fmt: skip
    before = loaded.digest
    file = tree["bin"].parents[1] / "tree" / "Stack" / "2.0"
    file.write_text(file.read_text() + "setenv MORE 1\n")
    assert modules.load_modules(["Stack/2.0"]).digest != before


def test_a_module_that_is_not_there_says_so_and_where_to_look(tree):
    with pytest.raises(SkipEnvironmentError, match=r"Absent/9 cannot be loaded: .*Absent/9") as told:
        modules.load_modules(["Stack/2.0", "Absent/9"])
    assert "module avail" in told.value.remedy


def test_modules_are_found_without_a_login_shell_where_moduleshome_says(tree, monkeypatch):
    monkeypatch.setattr(modules, "_SHELL", modules._SHELL.replace(". /etc/profile", "false"))
    assert modules.load_modules(["Stack/2.0"]).names == ("Stack/2.0",)


def test_without_the_command_it_says_so(tree, monkeypatch):
    monkeypatch.setattr(modules, "_SHELL", modules._SHELL.replace(". /etc/profile", "false"))
    monkeypatch.setenv("MODULESHOME", "/nowhere")
    with pytest.raises(SkipEnvironmentError, match="neither Lmod nor Environment Modules was found"):
        modules.load_modules(["Stack/2.0"])


def test_paths_are_joined_and_what_an_environment_sets_counts_more():
    own = {"PATH": "/m/bin", "PYTHONPATH": "/m/lib", "A": "module", "B": "module"}
    given = {"PATH": "/python/bin:/usr/bin:/bin", "PYTHONPATH": "/bench", "A": "level"}
    assert modules.merge_module_variables(own, given) == {
        "PATH": "/python/bin:/m/bin:/usr/bin:/bin", "PYTHONPATH": "/bench:/m/lib", "A": "level", "B": "module",
    }  # fmt: skip
    assert modules.merge_module_variables({}, given) == given


def test_programs_run_with_what_a_module_brings(project, tree):
    (project.folder / "mine").mkdir()
    (project.folder / "mine" / "train.py").write_text(PROGRAM)
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("PYTHON", sys.executable))
    done = project.run("bench", "one")
    assert done.returncode == 0, done.stderr
    assert "modules: Stack/2.0 Absent/9 cannot be loaded" in done.stderr
    trials = {trial["environment"]: trial for trial in project.trials()}
    values = {name: trial["record"]["metrics"]["value"] for name, trial in trials.items() if trial["outcome"] == "ok"}
    assert values == {"baseline": 10.0, "control": 10.0, "site": 20.0, "set": 30.0}
    log = (project.newest() / "logs" / f"{trials['site']['trial']}.log").read_text()
    said = json.loads(log.partition("said ")[2].splitlines()[0])
    assert said["python"] == str(tree["bin"] / "python3")
    assert said["loaded"] is None, "what modules keep for themselves does not get in"
    run = json.loads((project.newest() / "run.json").read_text())
    facts = next(facts for image, facts in run["images"].items() if "site" in image)
    assert facts["modules"] == "Stack/2.0"
    exported = project.run("export", "site", "--as", "slurm")
    assert "module load Stack/2.0" in exported.stdout, exported.stdout + exported.stderr
