"""The main job as a user runs it: real processes, real files, real kills."""

import json
import os
import signal
import time

import pytest

from envmatrix.results import RunFolder

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]


def planned(folder):
    plan = RunFolder(folder).load().plan
    return [(slot.trial, slot.arm.environment) for block in plan.blocks() for slot in block]


def test_a_design_runs_to_the_end_and_answers(project):
    done = project.run("bench", "tiny")
    assert done.returncode == 0, done.stderr
    trials = project.trials()
    assert [trial["outcome"] for trial in trials] == ["ok"] * 8
    assert [(trial["trial"], trial["environment"]) for trial in trials] == planned(project.newest())
    owners = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert owners == {"baseline": "libc", "control": "libc", "jemalloc": "libjemalloc", "one-thread": "libc"}
    summary = json.loads((project.newest() / "summary.json").read_text())
    primary = [effect for effect in summary["effects"] if effect["metric"] == "samples_per_s"]
    assert {effect["environment"] for effect in primary} >= {"jemalloc", "one-thread"}
    assert all(effect["blocks"] == 2 and effect["low"] < effect["ratio"] < effect["high"] for effect in primary)
    for name in ("report.md", "report.html"):
        assert "one-thread" in (project.newest() / name).read_text()
    assert "one-thread" in done.stdout


def test_a_block_takes_turns_and_answers(project):
    done = project.run("bench", "turns")
    assert done.returncode == 0, done.stderr
    trials = project.trials()
    assert [(trial["trial"], trial["environment"]) for trial in trials] == planned(project.newest())
    assert [(trial["outcome"], trial["together"]) for trial in trials] == [("ok", 3)] * 6
    for trial in trials:
        timing = trial["record"]["timing"]
        assert [(len(turn["apart_ns"]), turn["steps"]) for turn in timing["turns"]] == [(2, 2), (2, 1)]
        assert len(timing["steps_ns"]) == 3
    summary = json.loads((project.newest() / "summary.json").read_text())
    assert "3 processes alive at once; 6 of 6 trials" in summary["schedule"]
    assert "turns of 2 timed steps" in (project.newest() / "report.md").read_text()


def test_an_environment_that_is_not_what_it_claims_is_invalid_and_says_why(project):
    done = project.run("bench", "lying")
    assert done.returncode == 3, done.stderr
    liars = [trial for trial in project.trials() if trial["environment"] == "liar"]
    assert [trial["outcome"] for trial in liars] == ["invalid"]
    assert "claims malloc is libtcmalloc, but it was libc" in liars[0]["reason"]


def test_a_trial_that_never_ends_is_an_outcome_and_the_sweep_goes_on(project):
    done = project.run("bench", "endless")
    assert done.returncode == 3, done.stderr
    outcomes = sorted((trial["workload"], trial["outcome"]) for trial in project.trials())
    assert outcomes == [("endless", "timed_out")] * 2 + [("toy", "ok")] * 2


def wait_for(condition, process, seconds=240.0):
    """Wait until a condition is true; fail if the process ends first."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if condition():
            return
        assert not ended, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it never came so far")


def in_the_middle(project, after):
    """Start a design whose trials only wait; return its process once ``after`` trials have ended and one is running."""
    project.held.hold(after + 1)
    process = project.start("bench", "toy", "--quiet")
    wait_for(lambda: project.held.starts() == after + 1, process)
    assert len(project.trials()) == after
    return process


def killed_in_training(project):
    process = project.start("bench", "tiny", "--environments", "one-thread", "--quiet")
    wait_for(lambda: len(project.trials()) >= 2, process)
    process.kill()
    process.communicate()


def killed_after(after):
    def kill(project):
        process = in_the_middle(project, after)
        process.kill()
        process.communicate()
        project.held.let_go()

    return kill


@pytest.mark.parametrize("kill", [killed_in_training, *map(killed_after, (0, 5))], ids=["training", "0", "5"])
def test_kill_9_and_resume_lose_repeat_and_reorder_nothing(project, kill):
    kill(project)
    before = (project.newest() / "trials.jsonl").read_bytes() if project.trials() else b""
    done = project.run("resume", "--quiet")
    assert done.returncode == 0, done.stderr
    assert (project.newest() / "trials.jsonl").read_bytes().startswith(before)
    assert [(trial["trial"], trial["environment"]) for trial in project.trials()] == planned(project.newest())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cleanly_and_still_reports(project, number):
    process = in_the_middle(project, 5)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "envmatrix resume" in err
    assert "Traceback" not in err
    assert (project.newest() / "report.md").exists()
    project.held.let_go()
    assert project.run("resume", "--quiet").returncode == 0
    assert len(project.trials()) == 8


def test_exec_runs_any_command_inside_and_returns_its_status(project):
    (project.folder / "mine.py").write_text("import os, sys; print(os.environ['LD_PRELOAD']); sys.exit(7)")
    done = project.run("exec", "jemalloc", "--", "python", "mine.py")
    assert done.returncode == 7
    assert done.stdout.strip().endswith("libjemalloc.so.2")


def test_evidence_shows_what_is_active_and_fails_on_a_lie(project):
    good = project.run("evidence", "jemalloc", "--json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["evidence"]["malloc"]["library"] == "libjemalloc"
    assert project.run("evidence", "liar").returncode == 3


def test_exported_lines_set_up_the_same_environment_in_a_plain_shell(project):
    lines = project.run("export", "jemalloc").stdout
    assert "export LD_PRELOAD=" in lines
    import subprocess

    code = f"{lines}\nprintenv LD_PRELOAD"
    shown = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip().endswith("libjemalloc.so.2")
