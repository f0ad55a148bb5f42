"""CPU contention of trials is counted, reported and attributed: real processes and synthetic runs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import process_resource_usage
from bench.evidence import machine, process_tree_watch
from envmatrix.api.machine_checks import check_other_processes
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.warning import WarningKind
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import Machine, make_plan, make_run, make_trials
from tests.watched import work

ROOT = Path(__file__).parents[2]
BUSY = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"


@pytest.fixture
def neighbour():
    """Yield a program that competes for the CPU to which this process is then confined."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)  # like the program: equal shares
    yield busy.pid
    busy.kill()
    busy.wait()
    os.sched_setaffinity(0, before)


def test_waiting_for_a_cpu_that_another_program_has_is_counted(neighbour):
    before = process_resource_usage.read()
    sum(range(20_000_000))
    grown = process_resource_usage.since(before)
    assert grown["run_delay_s"] > 0.1 * (grown["user_s"] + grown["system_s"])
    assert grown["involuntary_switches"] > 0


WORK = "{work}"
IN_A_THREAD = f"import threading; t = threading.Thread(target=lambda: {WORK}); t.start(); t.join()"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{WORK}'], check=True)"


def record_of(program, tmp_path):
    looks, record = tmp_path / "looks", tmp_path / "record.json"
    watched = [sys.executable, ROOT / "tests/watched.py", looks, "command", "--record", record, "--metric-wall"]
    program = program.format(work=work(looks, cpu_s=1.0))
    subprocess.run([*watched, "--", sys.executable, "-c", program], check=True, cwd=ROOT)
    return json.loads(record.read_text())


@pytest.mark.parametrize("program", [WORK, IN_A_THREAD, IN_A_CHILD], ids=["itself", "thread", "child"])
def test_what_a_users_program_waits_for_a_cpu_is_counted_wherever_it_works(neighbour, program, tmp_path):
    record = record_of(program, tmp_path)
    metrics = record["metrics"]
    assert metrics["run_delay_s"] > 0.1 * (metrics["user_s"] + metrics["system_s"])
    assert metrics["involuntary_switches"] > 0
    assert record["evidence"]["system"]["steal_ticks"] >= 0
    assert {"pressure_s", "throttled_s", "energy_j", "gpu_energy_j"} <= set(metrics)


def test_a_wait_that_was_hardly_seen_is_not_known_and_one_half_seen_is_taken_for_the_whole():
    process = process_tree_watch.Watch(os.getpid())
    process.stop()
    process._ended_ns = (3_000_000_000, 1_000_000_000)
    process._living.clear()
    assert [process.run_delay_s(cpu_s) for cpu_s in (2.0, 3.0, 6.0, 7.0)] == [1.0, 1.0, 2.0, None]


def test_doctor_names_who_takes_the_cpu(neighbour):
    (found,) = check_other_processes(Path("/"))
    assert found.state == "bad"
    assert int(re.search(r"(\d+)% of a CPU", found.found)[1]) < 300  # a thread has one CPU; a busy machine looks late


def test_no_counter_is_ever_below_zero_or_zero_where_there_is_none():
    assert {"run_delay_s", "pressure_s", "throttled_s", "energy_j"} <= set(process_resource_usage.read())
    shrunk = dict(process_resource_usage.read(), run_delay_s=1e9, energy_j=None)
    assert (process_resource_usage.since(shrunk)["run_delay_s"], process_resource_usage.since(shrunk)["energy_j"]) == (
        None,
        None,
    )


def test_python_and_the_kernel_say_what_slows_them():
    system = machine.system()
    assert isinstance(system["gil"], bool)
    assert system["jit"] in (None, True, False)
    assert all(machine.cpu()["vulnerabilities"].values())


@pytest.mark.parametrize(("delay", "told"), [(0.0, False), (0.3, True)])
def test_a_disturbed_run_is_told_in_every_table(delay, told):
    plan = make_plan(("fast",))

    def disturb(trial):
        trial.document["metrics"].update(user_s=3.0, system_s=0.7, run_delay_s=delay)
        return replace(trial)

    trials = [disturb(trial) for trial in make_trials(plan, Machine({}, noise=0.01, stand_in=False), 10)]
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    assert (WarningKind.DISTURBED in {caution.kind for caution in summary.cautions}) is told
    assert ("disturbed" in to_markdown(summary)) is told
    assert ("8%" in to_markdown(summary)) is told


@pytest.mark.parametrize(("turns", "told"), [([{"apart_ns": [9, 9], "steps": 3}], False), (None, True)])
def test_what_a_program_waited_while_all_began_side_by_side_disturbed_nothing(turns, told):
    """Guards against warnings, in interleaved programs with steps, about contention during their common start."""
    plan = make_plan(("fast",))

    def began_beside_others(trial):
        trial.document["metrics"].update(user_s=3.0, system_s=0.7, run_delay_s=3.0)
        trial.document["timing"] = {"wall_ns": 4 * 10**9, "paused_ns": 8 * 10**9, "turns": turns}
        return replace(trial, together=3)

    trials = map(began_beside_others, make_trials(plan, Machine({}, noise=0.01, stand_in=False), 10))
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    assert (WarningKind.DISTURBED in {caution.kind for caution in summary.cautions}) is told
    assert ("disturbed" in to_markdown(summary)) is told


@pytest.mark.parametrize(("alone", "subject"), [(("baseline", "control"), "more:cnn@local"), ((), "the machine")])
def test_what_only_an_environment_of_many_ranks_waits_for_is_not_laid_on_the_machine(alone, subject):
    plan = make_plan(("more", "most"))

    def wait(trial):
        delay = 0.01 if trial.environment in alone else 2.0
        trial.document["metrics"].update(user_s=3.0, system_s=0.7, run_delay_s=delay)
        return trial

    trials = map(wait, make_trials(plan, Machine({}, noise=0.01, stand_in=False), 10))
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    (told,) = [caution for caution in summary.cautions if caution.kind is WarningKind.DISTURBED]
    assert told.subject.split(", ")[0] == subject
    assert told.text.startswith("CPU contention: threads that could run waited for a CPU 35% of the time"), (
        "of those that are named"
    )
    assert ("envmatrix doctor" in told.remedy) is (subject == "the machine")


@pytest.mark.parametrize(("blocks", "arms", "told"), [((3, 6), 3, True), ((3,), 1, False), ((), 3, False)])
def test_blocks_that_others_disturbed_are_told_of_a_run_that_is_quiet_else(blocks, arms, told):
    """Guards against silence about two disturbed blocks of ten, in which trials took three to six times as long."""
    plan = make_plan(("fast",))
    hit = {arm.name for arm in plan.arms[:arms]}

    def disturb(trial):
        delay = (3.0 if trial.block == 3 else 2.0) if trial.block in blocks and trial.arm in hit else 0.01
        trial.document["metrics"].update(user_s=2.5, system_s=0.5, run_delay_s=delay)
        return trial

    trials = map(disturb, make_trials(plan, Machine({}, noise=0.01, stand_in=False), 10))
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    said = [caution.text for caution in summary.cautions if caution.kind is WarningKind.DISTURBED]
    assert len(said) == told
    if told:
        assert said[0].startswith("other programs contended for CPUs in 2 of 10 blocks (most, block 3: ")
        assert "50%" in said[0]


def test_contention_and_the_blocks_in_which_it_was_worst_are_one_warning():
    plan = make_plan(("fast",))

    def disturb(trial):
        delay = 3.0 if trial.block in (3, 6) else 0.25 if trial.environment == "baseline" else 0.05
        trial.document["metrics"].update(user_s=2.5, system_s=0.5, run_delay_s=delay)
        return trial

    trials = map(disturb, make_trials(plan, Machine({}, noise=0.01, stand_in=False), 10))
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    (told,) = [caution.text for caution in summary.cautions if caution.kind is WarningKind.DISTURBED]
    assert told.startswith("CPU contention: threads that could run waited for a CPU ")
