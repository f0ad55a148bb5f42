"""Programs of many kinds, each really run."""

import os
import sys

import pytest

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]

MATRIX = """
version: 2
include: envmatrix:malloc
factors: {{python: {{here: {{interpreter: {python}}}}}}}
environments: {{baseline: {{}}}}
workloads:
  mine: {{{workload}}}
designs: {{default: {{environments: [glibc-tuned], workloads: mine, {design}}}}}
"""


def write(project, workload, design="max_blocks: 1", **files):
    text = MATRIX.format(python=sys.executable, workload=workload, design=design)
    (project.folder / "matrix.yaml").write_text(text)
    for name, body in files.items():
        file = project.folder / name.replace("_", ".")
        file.write_text(body)
        file.chmod(0o755)


def test_a_program_called_bench_in_a_python_without_torch_is_run_and_not_taken_for_ours(project):
    write(project, "command: python bench.py", bench_py="print('mine')\n", options_py="raise 1")
    done = project.run("bench", "--quiet")
    assert (done.returncode, [trial["outcome"] for trial in project.trials()]) == (0, ["ok"] * 3), done.stderr


def test_a_program_that_fails_stops_the_run_with_its_own_words_and_what_it_misses(project, monkeypatch):
    monkeypatch.setenv("CORPUS", "/data/corpus")
    program = "import os\nprint('begins')\nopen(os.environ['CORPUS'])\n"
    write(project, "command: python train.py", "budget: 30m", train_py=program)
    done = project.run("bench", "--quiet")
    assert done.returncode == 4
    assert all(trial["block"] == 0 for trial in project.trials())
    last = project.trials()[-1]
    assert last["reason"] == "the command ended with exit status 1: KeyError: 'CORPUS'"
    assert f"(log: {project.newest().relative_to(project.folder)}/logs/{last['trial']}.log)" in done.stderr
    assert "mine did not get " in done.stderr
    assert "pass_env: [CORPUS" in done.stderr
    assert "  | KeyError: 'CORPUS'" in done.stderr
    assert "stopped: the reference failed in the first block" in done.stderr


def test_what_is_passed_arrives_and_a_secret_is_in_no_file_of_the_run(project, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("PYTHONPATH", str(project.folder / "lib"))
    (project.folder / "lib").mkdir()
    (project.folder / "lib" / "beside.py").write_text("WORD = 'found'\n")
    program = (
        "import os, beside\nassert os.environ['HF_TOKEN'] == 'hf_very_secret'\n"
        f"assert os.environ['HOME'] == {os.environ['HOME']!r}\nassert os.environ['EPOCHS'] == '1'\n"
    )
    write(
        project, "command: python train.py, env: {EPOCHS: 1}, pass_env: [HF_TOKEN, PYTHONPATH], home: real",
        train_py=program,
    )  # fmt: skip
    done = project.run("bench", "--quiet")
    assert done.returncode == 0, done.stderr
    files = [file for file in project.newest().rglob("*") if file.is_file()]
    assert not [file for file in files if b"hf_very_secret" in file.read_bytes()]
    assert project.trials()[0]["record"]["evidence"]["variables"]["EPOCHS"] == "1"


def test_a_trial_past_its_limit_names_the_key_and_a_script_that_is_not_there_is_missed_by_check(project):
    write(project, "command: [python, -c, 'import time; time.sleep(600)']", "trial_limit: 1s")
    done = project.run("bench", "--quiet")
    assert done.returncode == 4
    assert "raise `trial_limit` of design default" in project.trials()[0]["reason"]
    write(project, "command: python trian.py", train_py="")
    checked = project.run("check")
    assert checked.returncode == 2
    assert "matrix.yaml:7:19: " in checked.stderr
    assert "did you mean train.py?" in checked.stderr


ONE = ("bench", "--max-blocks", "1", "--environments", "tcmalloc")


def test_one_command_for_a_program_that_says_how_fast_it_is(project):
    (project.folder / "matrix.yaml").unlink()
    program = "import sys\nprint('throughput:', 2.0 * int(sys.argv[1]), 'items/s')\n"
    (project.folder / "train.py").write_text(program)
    lines = ("--setup", "touch set-up", "--prepare", "echo prepared", "--cleanup", "rm set-up", "--show-output")
    done = project.run(
        *ONE, *lines, "--parameter-list", "N", "1,2", "--save", "made.yaml", "--", "python", "train.py", "{N}"
    )
    assert done.returncode == 0, done.stderr
    values = {trial["workload"]: trial["record"]["metrics"]["value"] for trial in project.trials()}
    assert values == {"train-N-1": 2.0, "train-N-2": 4.0}
    assert "metric: throughput, 2 items/s; higher is better" in done.stderr
    assert "prepared" in done.stderr
    assert not (project.folder / "set-up").exists()
    assert "to run it again, `envmatrix bench --matrix made.yaml`" in done.stderr
    assert project.run("check", "--matrix", "made.yaml").returncode == 0
    assert "# metric: {regex: " in (project.folder / "made.yaml").read_text()
    resumed = project.run("resume", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    lines = project.run("export", "tcmalloc", "--run", project.newest().name)
    assert "libtcmalloc_minimal.so.4" in lines.stdout, lines.stderr


def test_one_command_for_a_program_that_fails_runs_nothing_else_and_cleans_up(project):
    (project.folder / "matrix.yaml").unlink()
    (project.folder / "train.py").write_text("raise ValueError('no data')\n")
    done = project.run("bench", "--setup", "touch set-up", "--cleanup", "rm set-up", "--", "python", "train.py")
    assert done.returncode == 4
    assert (
        "your program failed in its trial run: the command ended with exit status 1: ValueError: no data" in done.stderr
    )
    assert not (project.folder / "set-up").exists()
    assert not (project.folder / "results").exists()


def test_bench_alone_in_an_empty_folder_says_what_to_do(project):
    (project.folder / "matrix.yaml").unlink()
    done = project.run("bench")
    assert done.returncode == 2
    assert "envmatrix bench -- python train.py" in done.stderr
    assert "envmatrix bench default" in done.stderr
