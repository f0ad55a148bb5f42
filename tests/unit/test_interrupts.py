"""No Ctrl-C and no SIGTERM is lost, whatever envmatrix is doing at that moment."""

import os
import random
import signal
import threading
from types import SimpleNamespace

import pytest

from envmatrix.__main__ import main
from envmatrix.block import interrupts
from envmatrix.cli import command_table
from envmatrix.launchers.local import Here
from envmatrix.results import RunFolder
from envmatrix.runner import loop as runner
from envmatrix.system.process import Order, run_logged
from envmatrix.trials import orphans
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials


def signalled(seconds, number):
    """Send a signal to this process from another thread, as a terminal or a batch system does."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.start()
    return timer


slow_fork: list[bool] = []
#: Simulates the slow fork of a large process, including hooks of its libraries: nothing may wait for it.
os.register_at_fork(before=lambda: sum(range(400_000)) if slow_fork else None)


class Sender:
    """Sends the signal some time after the first line is on disk."""

    def __init__(self, seconds, number):
        self.seconds, self.number, self.timer = seconds, number, None

    def trial_begins(self, slot, left_s, together=1):
        pass

    def trial_ended(self, trial):
        self.timer = self.timer or signalled(self.seconds, self.number)

    def block_ended(self, block, estimate, left_s, left):
        pass


def interrupted_run(path, monkeypatch, seconds, number):
    """Run short real processes and send the signal; return how the run ended and its trials on disk."""
    plan = make_plan((), max_blocks=30)  # seconds longer than any signal needs to arrive
    made = {trial.trial: trial for trial in make_trials(plan, Machine({}), plan.max_blocks)}

    def run_trial(experiment, slot, progress):
        (orphans.work_folder() / experiment.run.name).mkdir(parents=True, exist_ok=True)
        with (path / "log").open("ab") as log:
            assert run_logged(Order(["/bin/sleep", "0.005"], {}, path, 20), log).ok
        return made[slot.trial]

    monkeypatch.setattr(runner, "run_with_rebuild", run_trial)
    folder = RunFolder(path / "run")
    folder.create(make_run(plan), MATRIX_TEXT)
    engines = {"local": SimpleNamespace(sweep=lambda run: 0)}
    experiment = SimpleNamespace(folder=folder, plan=plan, run=folder.load(), engines=engines, trial_run_s=0.0)
    sender = Sender(seconds, number)
    ended = runner.run(experiment, Here(), sender, lambda text: None)
    sender.timer.join()
    folder.unlock()
    planned = [slot.trial for block in plan.blocks() for slot in block]
    return ended, [trial.trial for trial in folder.trials(plan)], planned


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_soon_after_a_line_reached_the_disk_ends_the_run(tmp_path, monkeypatch, number):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(f"{__name__}.slow_fork", [True])
    chance = random.Random(7)
    for attempt in range(20):
        path = tmp_path / str(attempt)
        path.mkdir()
        ended, names, planned = interrupted_run(path, monkeypatch, chance.uniform(0, 0.05), number)
        assert ended.interrupted, f"the signal of attempt {attempt} was lost"
        assert names == planned[: len(names)]
        assert 0 < len(names) < len(planned)
        assert orphans.killed_runs() == [], "its work folder is gone with it"


@pytest.mark.parametrize("deep", [1, 2])
def test_what_is_held_is_done_whole_and_the_signal_is_raised_after_it(deep):
    done = []

    def work(left):
        with interrupts.held():
            if left > 1:
                work(left - 1)
            else:
                os.kill(os.getpid(), signal.SIGTERM)
            done.append("whole")
        if left == deep:
            done.append("never")

    with pytest.raises(KeyboardInterrupt), interrupts.handle_signals():
        work(deep)
    assert done == ["whole"] * deep


class Swallows:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))  # the handler runs here, and Python drops its exception


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_a_finaliser_swallowed_is_raised_by_the_next_check():
    reached = []

    def work():
        Swallows()
        reached.append("swallowed")
        interrupts.check()

    with pytest.raises(KeyboardInterrupt), interrupts.handle_signals():
        work()
    assert reached == ["swallowed"]


def test_outside_a_run_signals_mean_what_they_meant():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with interrupts.handle_signals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_second_signal_right_after_the_first_says_nothing_new_and_a_later_one_does(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    done = []

    def end_twice(left):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)  # as nox or a batch system does
            interrupts.mark_handled()
            interrupts.check()
            done.append("what it ends with")
        if left:
            now[0] += 10.0
            end_twice(left - 1)

    with interrupts.handle_signals():
        end_twice(1)
    assert done == ["what it ends with"] * 2


def test_a_signal_that_comes_as_the_report_is_written_ends_the_command_in_its_own_way(monkeypatch, capsys):
    def told(arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command_table, "run_command", told)
    assert main(["list"]) == 130
    assert "interrupted" in capsys.readouterr().err
