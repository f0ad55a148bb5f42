"""The example launcher of another package (docs/how-to/write-a-launcher.md), from outside, as a user runs it."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.slurm_daemons import wait_for
from tests.local.conftest import PROJECT
from tests.own_launcher import lay_out_detached

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

MATRIX = f"""
version: 2
factors: {{python: {{mine: {{interpreter: {sys.executable}}}}}, word: {{none: {{}}, some: {{env: {{WORD: some}}}}}}}}
environments: {{baseline: {{}}, some: {{word: some}}}}
workloads: {{wait: {{command: [python, wait.py, HELD, "0"], metric: {{wall: true}}, files: programs}}}}
designs: {{default: {{environments: some, workloads: wait, schedule: sequential, min_blocks: 2, max_blocks: 2}}}}
"""
BENCH = ("bench", "--launcher", "detached", "--name", "one")


@pytest.fixture
def installed(project, tmp_path, monkeypatch):
    """Return a project of two environments, with the example installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*lay_out_detached(tmp_path / "site"), str(PROJECT)]))
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("HELD", str(project.held.folder)))
    return project


def first_process_runs(project):
    """Return whether the process that the launcher noted for its first block still runs."""
    pid = (project.newest() / "detached" / "b0000" / "pid-1").read_text().strip()
    words = Path(f"/proc/{pid}/cmdline")
    return words.exists() and str(project.folder) in words.read_text()


def start_held(project):
    """Start a run; return it when its second trial runs and the first is recorded."""
    project.held.hold(2)
    bench = project.start(*BENCH)
    wait_for(lambda: project.held.starts() == 2 and len(project.trials()) == 1, 120, "the second trial")
    return bench


def ran_once(project):
    trials = project.trials()
    assert {trial["outcome"] for trial in trials} == {"ok"}
    assert len(trials) == len({trial["trial"] for trial in trials}) == 6
    return True


def test_a_killed_run_goes_on_in_its_process_and_resume_finds_it(installed):
    assert "  detached    of envmatrix-detached 1.0\n" in installed.run("list", "launchers").stdout
    bench = start_held(installed)
    bench.kill()
    bench.communicate()
    assert first_process_runs(installed)
    installed.held.let_go()
    done = installed.run("resume", "one")
    assert done.returncode == 0, done.stderr
    assert "block 1 runs as process " in done.stderr
    assert ran_once(installed)
    assert installed.held.starts() == 6, "the trial that was running was not repeated"


def test_ctrl_c_ends_the_process_and_resume_repeats_only_its_trial(installed):
    bench = start_held(installed)
    bench.send_signal(signal.SIGINT)
    _, said = bench.communicate(timeout=60)
    assert "Traceback" not in said
    assert len(installed.trials()) == 1
    done = installed.start("resume", "one")
    wait_for(lambda: installed.held.starts() == 3, 60, "the repeated trial")
    assert not first_process_runs(installed)
    installed.held.let_go()
    _, said = done.communicate(timeout=120)
    assert done.returncode == 0, said
    assert ran_once(installed)
    assert installed.held.starts() == 7
