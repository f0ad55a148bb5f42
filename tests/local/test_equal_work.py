"""A user's own program, really measured: equal work is checked, and an edit during the run is noticed."""

import pytest

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

MATRIX = """
version: 2
factors:
  torch: {"2.13.0": {requirements: [torch==2.13.0, torchvision==0.28.0, numpy], index: "https://download.pytorch.org/whl/cpu"}}
  part: {all: {}, skips: {env: {PART: "1"}}}
environments: {baseline: {}, skips: {part: skips}}
workloads:
  mine:
    command: [python, train.py]
    metrics:
      seconds: {wall: true}
      sum: {json_file: "out.json:sum", unit: points}
    check: [{name: items, regex: "items ([0-9]+)", tolerance: 0}, {json_file: "out.json:sum", tolerance: 1%}]
designs:
  two: {environments: [skips], workloads: mine, min_blocks: 2, max_blocks: 2, target: 0.01%}
"""
PROGRAM = """
import json, os, time
import beside
items = 30 if not os.environ.get("PART") else 1
total = 0
for item in range(items):
    total += item + beside.MORE
    time.sleep(0.01)
print("items", items)
json.dump({"sum": total}, open("out.json", "w"))
"""


def test_work_that_differs_is_named_and_an_edit_makes_every_further_trial_invalid(project):
    (project.folder / "matrix.yaml").write_text(MATRIX)
    (project.folder / "train.py").write_text(PROGRAM)
    (project.folder / "beside.py").write_text("MORE = 1\n")
    done = project.run("bench", "two", "--quiet")
    assert done.returncode == 7, done.stderr
    assert "exit code 7: skips did other work than the reference" in done.stderr
    assert "items 1, reference 30 to 30" in done.stdout
    gate = project.run("compare", project.newest().name, "--environments", "baseline,skips", "--fail-slower", "3%")
    assert gate.returncode == 7, gate.stdout
    assert "o environment is " in done.stdout
    lines = project.newest() / "trials.jsonl"
    kept = lines.read_text().splitlines(keepends=True)
    lines.write_text("".join(kept[:3]))
    (project.folder / "beside.py").write_text("MORE = 2\n")
    again = project.run("resume", "--quiet")
    assert again.returncode == 7, again.stderr
    found = {trial["trial"]: (trial["outcome"], trial["reason"]) for trial in project.trials()}
    said = "beside.py was edited since the run started: later trials do other work"
    assert [found[name] for name in sorted(found)] == [("ok", "")] * 3 + [("invalid", said)] * 3
