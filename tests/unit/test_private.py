"""Private details that a published run must not contain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import recorded_variables
from bench.evidence import program_from_outside
from bench.evidence.process_tree_watch import Program
from envmatrix.build.images.definitions import environment_variables
from envmatrix.cli import command_table
from envmatrix.evidence.evidence_models import Evidence
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import MatrixError, load, parse
from envmatrix.results import RunFolder, trial_of
from envmatrix.results.anonymize import Anonymizer
from envmatrix.trials import execution
from envmatrix.trials.experiment_setup import create_experiment
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.trial_evidence_verification import contradicting_variables, verify_evidence
from tests.synthetic import make_environment, make_plan, make_run

ROOT = Path(__file__).parents[2]
CALLERS = {
    "DATABASE_URL": "postgres://app:hunter2@db/x", "https_proxy": "http://me:hunter2@proxy:3128",
    "GITHUB_PAT": "hunter2", "PGPASSWORD": "hunter2", "PIP_INDEX_URL": "https://hunter2@index/simple",
    "LESSOPEN": "hunter2", "DSN": "hunter2",
    "OMP_NUM_THREADS": "3", "LD_LIBRARY_PATH": "/opt/lib", "PYTHONHASHSEED": "0", "TORCH_LOGS": "x",
}  # fmt: skip


def test_values_of_others_variables_are_never_written():
    said = recorded_variables.recorded_texts(CALLERS)
    assert "hunter2" not in str(said)
    assert list(said) == list(CALLERS)
    assert {name: said[name] for name in list(CALLERS)[-4:]} == {name: CALLERS[name] for name in list(CALLERS)[-4:]}
    assert said["DSN"] == "(set)"
    assert said["PGPASSWORD"] == "(hidden)"


def test_a_program_watched_from_outside_tells_no_more(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    held = subprocess.Popen(["/bin/cat"], env={**CALLERS, "PATH": os.environ["PATH"]}, **pipes)
    held.stdin.write(b"x")
    assert held.stdout.read(1) == b"x", "it runs: before that its variables may not be there yet"
    program = Program(held.pid, "cat")
    program.look(held.pid, 0.0)
    held.communicate()
    seen = program_from_outside.evidence(program)
    assert "hunter2" in str(program.variables)
    assert seen["variables"]["OMP_NUM_THREADS"] == "3"
    assert "hunter2" not in str(seen)


def test_a_record_of_evidence_by_hand_tells_no_more(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import json; from bench import evidence; print(json.dumps(evidence.before_torch()))"],
        cwd=ROOT, env={**CALLERS, "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "hunter2" not in done.stdout
    assert json.loads(done.stdout)["variables"]["TORCH_LOGS"] == "x"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://me:pw@h/x", "https://(hidden)@h/x"),
        ("see git+https://token@h/x.git now", "see git+https://(hidden)@h/x.git now"),
        ("postgres://:pw@h", "postgres://(hidden)@h"),
        ("ssh://git@h/x", None), ("docker://h/torch@sha256:00", None), ("https://h/a@b", None), ("a:b@c", None),
    ],
)  # fmt: skip
def test_urls_keep_all_but_who_asks(text, told):
    assert recorded_variables.without_userinfo(text) == (told or text)


def test_what_an_environment_sets_is_written_and_held_against_it():
    mine = make_environment("mine", variables={"MINE": "1", "OMP_NUM_THREADS": "2", "MY_TOKEN": "t", "GONE": None})
    inside = execution.environment_variables(mine)
    assert inside["BENCH_VARIABLES"] == "MINE,MY_TOKEN"
    said = recorded_variables.recorded_texts(inside)
    assert (said["MINE"], said["MY_TOKEN"]) == ("1", "(hidden)")
    evidence = Evidence.model_validate({"variables": said})
    assert contradicting_variables(mine.variables, evidence) == []
    for other in ({"MINE": "2"}, {"GONE": "1"}):
        wrong = Evidence.model_validate({"variables": {**said, **other}})
        assert len(contradicting_variables(mine.variables, wrong)) == 1
    assert environment_variables(mine)["BENCH_VARIABLES"] == "MINE,MY_TOKEN"
    assert "BENCH_VARIABLES" not in environment_variables(make_environment("known"))


def test_a_value_that_a_program_was_not_told_to_write_is_neither_proven_nor_contradicted():
    mine = make_environment("a", preload=(), variables={"MINE": "1", "GONE": None})
    untold = recorded_variables.recorded_texts({"MINE": "1"})
    proof = verify_evidence(mine, Evidence.model_validate({"variables": untold}))
    assert (proof.wrong, proof.unproven) == ((), ("MINE was set in the process, but its value was not recorded",))
    assert verify_evidence(mine, Evidence.model_validate({"variables": {**untold, "GONE": "(set)"}})).wrong


@pytest.mark.parametrize(
    "line",
    ["factors: {torch: {a: {index: 'https://me:pw@h/simple'}}}", "factors: {f: {a: {env: {DB: 'postgres://me:pw@h'}}}}",
     "workloads: {w: {command: [python, --from, 'https://token@h/x']}}"],
)  # fmt: skip
def test_a_password_in_a_matrix_is_refused_with_its_place(line):
    with pytest.raises(MatrixError, match=r"m\.yaml:2:\d+: this URL contains a user name or password") as caught:
        parse(f"version: 2\n{line}\n", Path("m.yaml"))
    assert "pw" not in str(caught.value).replace("password", "")


def test_a_run_keeps_no_password_of_the_command_line(tmp_path, monkeypatch):
    from envmatrix.results import RunFolder
    from tests.synthetic import make_plan, make_run

    folder = RunFolder(tmp_path / "r")
    folder.create(make_run(make_plan(()), command=("bench", "--x", "https://me:pw@h")), "# https://me:pw@h\n")
    assert "pw" not in folder.run_file.read_text() + folder.matrix_file.read_text()
    assert folder.load().command == ("bench", "--x", "https://(hidden)@h")


MINE = Anonymizer(
    {"/data/cache/envmatrix": "{cache}", "/home/alice/secret": "{matrix}", "/home/alice": "{home}"}, "alice", {}
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/home/alice/secret/x.py:3", "{matrix}/x.py:3"),
        ("a:/home/alice.", "a:{home}."),
        ("cc -I/home/alice/include -L/home/alice/lib", "cc -I{home}/include -L{home}/lib"),
        ("file:///home/alice/w.whl", "file://{home}/w.whl"),
        ("/data/cache/envmatrix/venvs/0", "{cache}/venvs/0"),
        ("/scratch/alice/x and /home/bob-2/y", "/scratch/{user}/x and {home}/y"),
        ("/home/alice/.cache/envmatrix/venvs", "{cache}/venvs"),
        ("failed\n/root/x", "failed\n{home}/x"),
        ("/opt/rh/gcc-toolset-13/root/usr/bin/c++", None), ("/usr/lib/alice/x", None), ("/data/cache/envmatrix2", None),
        ("http://h/home/alice", "http://h/home/{user}"), ("http://h/root", None), ("/roots", None), ("alice", None),
    ],
)  # fmt: skip
def test_texts_name_no_folder_of_a_user(text, told):
    assert MINE.without_user_folders(text) == (told or text)


def test_what_a_run_goes_on_with_is_what_was_meant():
    body = {"workloads": {"own": {"files": "/home/alice/secret"}}, "variables": {"LIB": "/home/alice/lib:/home/bob/l"}}
    shown = MINE.run({**body, "host": {"name": "n1"}})
    assert "alice" not in str(shown)
    assert shown["host"] == {"name": "node-1"}
    assert MINE.matrix("/home/alice/secret/own.py") == "{home}/secret/own.py", "a pack's matrix lies elsewhere"
    assert MINE.real(shown) == {**body, "host": {"name": "node-1"}}


def test_hosts_are_numbered_as_they_come_and_stay_so():
    names = Anonymizer({}, hosts={})
    lines = [
        {"node": "gpu7.site.org", "reason": "gpu7.site.org was lost; agpu7 not", "record": {"level": "gpu7"}},
        {"node": "gpu2,gpu7", "record": {"evidence": {"parallel": {"ranks": [
            {"node": "gpu2", "host": "0123456789ab"}, {"node": "gpu9", "host": "gpu9"}]}}}},
    ]  # fmt: skip
    first, second = map(names.trial, lines)
    assert first == {"node": "node-1", "reason": "node-1 was lost; agpu7 not", "record": {"level": "gpu7"}}
    assert second["node"] == "node-2,node-1"
    assert second["record"]["evidence"]["parallel"]["ranks"] == [
        {"node": "node-2", "host": "0123456789ab"}, {"node": "node-3", "host": "node-3"},
    ]  # fmt: skip
    assert Anonymizer({}, hosts=None).trial(lines[0])["node"] == "gpu7.site.org"


def test_a_run_on_disk_names_nothing_of_this_machine_and_goes_on_with_all_of_it(tmp_path, monkeypatch):
    home = tmp_path / "home" / "carol"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    plan = make_plan(("baseline", "b"))
    run = make_run(plan)
    workload = Workload(name="own", command=("python", "x.py"), files=str(home / "study"))
    run = run.model_copy(
        update={"workloads": {**run.workloads, "own": workload}, "host": replace(run.host, name="login.site.org")}
    )
    folder = RunFolder(tmp_path / "run")
    folder.create(run, "version: 1\n", home / "study")
    slot = plan.block(0)[0]
    folder.append(trial_of(slot, "failed", f"{tmp_path}/cache/x: gone", node="n5.site.org"))
    folder.append(trial_of(slot, "failed", "on login", node="login"))
    again = RunFolder(folder.path)
    assert again.load().workloads["own"].files == "{matrix}"
    assert again.load().host.name == "node-1"
    here = again.load_for_resume()
    assert (here.workloads, here.host) == (run.workloads, run.host)
    lines = [json.loads(line) for line in again.trials_file.read_text().splitlines()]
    assert [line["node"] for line in lines] == ["node-2", "node-1"]
    assert [line["reason"] for line in lines] == ["{cache}/x: gone", "on node-1"]
    again.append(trial_of(slot, "failed", node="n6"))
    assert json.loads(again.trials_file.read_text().splitlines()[-1])["node"] == "node-3"
    written = again.run_file.read_text() + again.trials_file.read_text()
    assert not any(name in written for name in ("carol", "site", str(tmp_path)))


MATRIX = """version: 2
factors: {malloc: {glibc: {}, jemalloc: {preload: libjemalloc.so.2}}}
environments: {baseline: {}, tuned: {malloc: jemalloc}}
workloads: {cnn: {command: ["true"], metric: {wall: true}}}
designs: {d: {environments: [tuned], workloads: cnn}}
"""


def test_a_word_of_the_command_line_that_is_no_utf_8_loses_no_run(tmp_path):
    folder = RunFolder(tmp_path / "r")
    folder.create(make_run(make_plan(()), command=("bench", "--", "caf\udce9.py", "\\udce9")), "version: 2\n")
    assert folder.load().command == ("bench", "--", "caf\ufffd.py", "\\udce9")


@pytest.mark.parametrize("kept", [True, False])
def test_hosts_are_called_what_they_are_called_only_where_that_is_asked_for(tmp_path, monkeypatch, kept):
    run = make_run(make_plan(("tuned",)))
    monkeypatch.setattr("envmatrix.trials.experiment_setup._prepare_sides", lambda *_: ({}, {}, {}))
    monkeypatch.setattr("envmatrix.trials.experiment_setup.prepare_data_sets", lambda *_: run.workloads)
    (tmp_path / "m.yaml").write_text(MATRIX)
    matrix = load(tmp_path / "m.yaml")
    host = replace(make_run(make_plan(())).host, name="vm9")
    begun = create_experiment(matrix, matrix.designs["d"], ("local",), NewRun(tmp_path, host_names=kept), host)
    assert RunFolder(begun.folder.path).load().host.name == ("vm9" if kept else "node-1")
    assert RunFolder(begun.folder.path).load().design.schedule == "sequential", "its wall time is all there is"
    arguments = command_table.parse(["bench", *(["--host-names"] if kept else [])])
    assert arguments.host_names is kept


@pytest.mark.parametrize("beside", ["", "/data"])
def test_data_in_a_folder_of_the_user_is_read_again_as_it_was_written(tmp_path, beside):
    """Guards against a run without a report, if its program's data is below a home folder or next to its matrix."""
    data = f"{tmp_path}{beside}"
    own = {"cnn": Workload(name="cnn", command=("python", "train.py"), mounts=(data, "/root/data"))}
    folder = RunFolder(tmp_path / "run")
    folder.create(make_run(make_plan(("a",)), workloads=own), "version: 1\n", tmp_path)
    assert folder.load().workloads["cnn"].mounts[0] == f"{{matrix}}{beside}"
    assert folder.load_for_resume().workloads["cnn"].mounts[0] == data
