"""A search on a real Slurm of two nodes."""

import json
import re
import sys

import pytest

from envmatrix.api.tuning import search
from envmatrix.api.user_program.program_options import ProgramRequest, make_place
from envmatrix.results.folder import RunFolder

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
#: Prints a speed that depends on its environment. A factor of ten is more than other programs on its CPUs can explain,
#: provided that it runs for longer than one check of them.
PROGRAM = """
import os, time
end = time.process_time() + 0.2
while time.process_time() < end: pass
speed = 100.0 * (10.0 if os.environ.get("SIZE") == "large" else 1.0) * (1 + 0.01 * (os.getpid() % 7 - 3) / 3)
print(f"speed: {speed}")
"""
MATRIX = """
version: 2
factors:
  python: {mine: {interpreter: PYTHON}}
  size: {small: {}, large: {env: {SIZE: large}}}
  inert: {"no": {}, "yes": {env: {INERT: "1"}}, other: {env: {INERT: "2"}}}
environments: {baseline: {}}
workloads:
  own: {command: [python, fast.py], metric: {regex: "speed: ([0-9.]+)", better: higher}, files: programs}
designs:
  small: {factors: {size: [small, large], inert: ["no", "yes", other]}, workloads: own}
"""


@pytest.fixture
def tuned(project):
    (project.folder / "programs" / "fast.py").write_text(PROGRAM)
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("PYTHON", json.dumps(sys.executable)))
    return project


def test_a_search_deals_its_candidates_to_two_nodes_confirms_on_both_and_says_which_is_the_worst(tuned):
    done = tuned.run("tune", "small", "--launcher", "slurm", "--nodelist", "n1,n2", "--nodes", "2",
                     "--budget", "40s", "--name", "found", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["recommended"] == {"size": "large"}
    assert (body["low"] < 10.08, body["high"] > 9.92) == (True, True), "the truth, and what one interval of 20 lies off"
    assert {one["node"] for one in body["nodes"]} == {"node-1", "node-2"}
    assert body["nodes"][0]["ratio"] >= body["nodes"][1]["ratio"]
    steps = [RunFolder(file.parent) for file in sorted((tuned.folder / "results" / "found").glob("0*/run.json"))]
    first = steps[0].load()
    trials = list(steps[0].trials(first.plan))
    assert first.parts == 2
    assert {trial.node for trial in trials if trial.environment == "baseline"} == {"node-1", "node-2"}
    assert all(trial.outcome == "ok" for trial in trials)
    candidates = [trial.environment for trial in trials if trial.environment not in ("baseline", "control")]
    assert len(candidates) == len(set(candidates)) == 3
    page = (tuned.folder / "results" / "found" / "report.html").read_text()
    ratio = r"(9|10)\.\d+ on node-\d"
    assert re.search(rf"By node \(\d+ blocks\): {ratio}, {ratio}; node-\d is the worst\.", page)


def test_a_program_on_the_command_line_is_searched_on_two_nodes(project, monkeypatch):
    """What comes after this is the search of a design, as above."""
    for name, value in project.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.folder)
    (project.folder / "fast.py").write_text(PROGRAM)
    options = {"nodelist": ("n1", "n2"), "nodes": "2"}
    place = make_place((), "", "slurm", options, print)
    request = ProgramRequest((sys.executable, "fast.py"), place=place)
    asked = search.SearchRequest(name="own", launcher="slurm", launcher_options=options, progress=print)
    begun = search.begin_program_search(request, asked, print)
    assert (begun.study.place.launcher, begun.study.place.width, begun.study.place.options) == ("slurm", 2, options)
    assert begun.study.place.host is not None, "the nodes were looked at"
    assert begun.study.design.workloads == ("fast",)
