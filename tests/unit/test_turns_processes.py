"""Interleaving of real processes that use the gate as bench/ does: those that die, hang or send false messages."""

import contextlib
import itertools
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.block import interleave as block
from envmatrix.block.turn_gate import FOLDER
from envmatrix.engines.base import Job, Limits, Mounts, Prepared
from envmatrix.engines.local import guarded_job
from envmatrix.errors import EngineGoneError, NoTrialError
from envmatrix.plan import turn_order as order
from envmatrix.results import trial_of
from envmatrix.trials import interleave
from tests.synthetic import make_plan, make_run

PROGRAM = """
import os, signal, sys
folder, log, how, steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
if os.fork() == 0:
    while True: pass
log = os.open(log, os.O_WRONLY | os.O_APPEND)
def stick():
    os.write(log, f"stuck {os.getppid()}\\n".encode())
    signal.pause()
if how == "never": stick()
told, heard = open(folder + "/ready", "w"), open(folder + "/go")
turns = trial = 0
while True:
    told.write("nonsense\\n" if how == "lies" and turns else f"ready {steps}\\n")
    told.flush()
    said = heard.readline().split()
    if said[0] == "end" and len(said) == 1:
        break
    if said[0] == "end":
        os.write(log, f"{os.getpid()} later {said[1]} 0\\n".encode())
        trial, steps = turns, 2 * int(sys.argv[4])
        if how == "dies at its end": os.kill(os.getpid(), signal.SIGKILL)
        continue
    turns += 1
    if how == "dies later" and trial and turns == trial + 2: os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs later" and trial and turns == trial + 2: stick()
    if how == "dies" and turns == 2: os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs" and turns == 2: stick()
    steps -= min(steps, int(said[2]))
    os.write(log, f"{os.getpid()} {said[1]} {said[2]} {steps}\\n".encode())
if how == "stays": stick()
"""


def order_of(count):
    """Return the arms of the first block of ``count`` arms, in its order."""
    return [slot.arm for slot in make_plan(tuple(f"e{number}" for number in range(count - 2))).block(0)]


class Watched:
    """Runs a program like engine ``local``, and checks all others whenever one is resumed."""

    def __init__(self, running, those):
        self.running, self.those = running, those
        self.pid = None
        those.append(self)

    def __getattr__(self, name):
        return getattr(self.running, name)

    def fileno(self):
        return self.running.fileno()

    def release(self):
        if self.those.watching:
            running = [state for other in self.those if other is not self for state in states(other) if state != "T"]
            self.those.seen.append(running)
        self.running.release()


def watched_of(file):
    """Return what an engine started, of what is waited for."""
    return getattr(file, "running", None) if isinstance(getattr(file, "running", None), Watched) else None


class Those(list):
    watching, seen, most_at_once = True, (), 0


def states(watched):
    """Return the states of a program's processes, without those of its supervisor."""
    supervisor = watched.running.process.pid
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        parents[int(folder.name)] = int(parent), state
    level, found = {supervisor}, []
    while level := {pid for pid, (parent, _) in parents.items() if parent in level}:
        found += [parents[pid][1] for pid in level]
    return found


class Engine:
    """An engine whose programs record what is done to them."""

    name = "local"

    def __init__(self, start, those):
        self._start, self._those = start, those

    @contextlib.contextmanager
    def started(self, job):
        running = sum(set(states(other)) != {"T"} for other in self._those)
        self._those.most_at_once = max(self._those.most_at_once, running + 1)
        with self._start(job, job.argv, job.env) as running:
            yield Watched(running, self._those)

    def holds(self, _prepared):
        return True

    def unavailable(self):
        return None


@pytest.fixture
def together_of(tmp_path, monkeypatch):
    """Return a function that runs a group of programs and returns its trials, their log, and the engine's log."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    log = tmp_path / "log"
    log.touch()
    those = Those()
    those.seen = []

    def wait(files, seconds):
        """Time out as soon as every awaited program has logged that it is stuck."""
        supervisors = {str(watched.running.process.pid) for watched in map(watched_of, files) if watched}
        while not (ready := really_wait(files, 0.02)):
            if supervisors <= {line.split()[1] for line in log.read_text().splitlines() if line.startswith("stuck")}:
                break
        return ready

    really_wait = block.interrupts.wait_readable
    monkeypatch.setattr(block, "interrupts", SimpleNamespace(wait_readable=wait))

    def run(*hows, steps=6, limit_s=60.0, turn=2, start=guarded_job, room=99, one_turn=False, cpus=None,
            lengths=None, later_s=None):  # fmt: skip
        plan = make_plan(tuple(f"e{number}" for number in range(len(hows) - 2)))
        slots = plan.block(0)
        behaves = dict(zip((slot.trial for slot in slots), hows, strict=True))

        def make_job(_experiment, slot, work, *, gate):
            assert gate
            argv = (sys.executable, "-c", PROGRAM, f"{work}/{FOLDER}", str(log), behaves[slot.trial], str(steps))
            mounts = Mounts(work, {})
            prepared = Prepared("i", "local", "", sys.executable, {})
            return Job("run", slot.trial, prepared, argv, {}, (), mounts, Limits(limit_s), tmp_path / "trial.log")

        monkeypatch.setattr("envmatrix.trials.execution.make_job", make_job)
        monkeypatch.setattr(
            interleave, "make_finished_trial",
            lambda _experiment, slot, ended, _job, started: trial_of(
                slot, "timed_out" if ended.timed_out else "ok" if ended.ok else "failed", str(ended), started=started
            ),
        )  # fmt: skip
        design = {"schedule": "turns", "turn": turn, "turn_apart": 3, "trial_limit": str(limit_s), "cpus": cpus}
        run = make_run(plan, design=design)
        made = SimpleNamespace(run=run, plan=plan, engines={"local": Engine(start, those)}, prepared={})
        whole = order.split_into_waves(slots, dict.fromkeys((slot.arm.name for slot in slots), 1), room, steps // turn)
        whole = whole or order.InterleavedGroup((tuple(slots),), one_turn=one_turn)
        found = interleave.run_interleaved(made, whole, pytest.fail, lengths, later_s)
        assert [trial.trial for trial in found] == [slot.trial for slot in whole.slots]
        found.sort(key=lambda trial: trial.position)
        assert not list((tmp_path / "cache").glob("work/*/*/*"))
        return found, [line.split() for line in log.read_text().splitlines() if line[0] != "s"], those

    return run


def test_one_process_runs_while_all_others_are_stopped_until_all_steps_are_taken(together_of):
    trials, log, those = together_of("", "", "", steps=5)
    assert [(trial.outcome, trial.together) for trial in trials] == [("ok", 3)] * 3
    assert [line[1:] for line in log] == [["3", "2", left] for left in ("3", "1", "0") for _ in range(3)]
    rounds = [{line[0] for line in log[first : first + 3]} for first in (0, 3, 6)]
    assert all(len(one) == 3 for one in rounds)
    turns_seen = those.seen[: 3 * 3]
    assert turns_seen == [[]] * 9, "a child that spins is stopped too"


def test_turns_may_differ_by_how_many_a_process_has_had(together_of):
    _, log, _ = together_of("", "", "", lengths=lambda had: (0, 1) if had < 2 else (3, 9))
    assert [line[1:] for line in log] == [["0", "1", "5"]] * 3 + [["0", "1", "4"]] * 3 + [["3", "9", "0"]] * 3


def test_processes_go_on_after_their_trials_in_stretches_while_all_others_are_stopped(together_of):
    trials, log, those = together_of("", "", "", steps=6, turn=3, later_s=4.0)
    assert [(trial.outcome, trial.together, trial.later_failed) for trial in trials] == [("ok", 3, "")] * 3
    assert all(trial.later_s > 0 for trial in trials)
    assert [line[1:] for line in log[:6]] == [["3", "3", left] for left in ("3", "0") for _ in range(3)]
    assert sorted(line[1:] for line in log[6:9]) == [["later", "4000", "0"]] * 3, "all have ended their trials before"
    assert [line[1:] for line in log[9:]] == [["3", "3", left] for left in ("9", "6", "3", "0") for _ in range(3)]
    assert len({tuple(line[0] for line in log[first : first + 3]) for first in range(9, 21, 3)}) > 1, "random order"
    assert those.seen[6 + 3 : 6 + 3 + 12] == [[]] * 12


def test_those_that_must_not_be_held_between_steps_go_on_in_one_stretch(together_of):
    _, log, _ = together_of("", "", "", steps=5, one_turn=True, later_s=4.0)
    assert (
        sorted(line[1:] for line in log)
        == [["0", "10", "0"]] * 3 + [["0", "5", "0"]] * 3 + [["later", "4000", "0"]] * 3
    )


@pytest.mark.parametrize(("how", "words"), [("dies later", "SIGKILL"), ("hangs later", "past its limit")])
def test_a_process_that_breaks_after_its_trial_leaves_the_trial_and_the_others(together_of, how, words):
    trials, log, _ = together_of("", how, "", later_s=4.0)
    assert [trial.outcome for trial in trials] == ["ok"] * 3
    assert [words in trial.later_failed for trial in trials] == [False, True, False]
    assert len([line for line in log if line[1:] == ["3", "3", "0"]]) == 2, "the others had all their steps"


def test_a_process_that_breaks_before_its_record_is_written_has_no_trial(together_of):
    trials, _, _ = together_of("", "dies at its end", "", later_s=4.0)
    assert [trial.outcome for trial in trials] == ["ok", "failed", "ok"]
    assert [trial.later_s is None for trial in trials] == [False, True, False]


def test_in_smaller_groups_no_process_goes_on(together_of):
    trials, log, _ = together_of("", "", "", "", "", room=4, later_s=4.0)
    assert {trial.later_s for trial in trials} == {None}
    assert not [line for line in log if line[1] == "later"]


@pytest.mark.parametrize(("cpus", "most"), [("0", 1), ("0-2", 3)])
def test_as_many_processes_get_ready_at_once_as_there_are_cpus(together_of, cpus, most):
    trials, _, those = together_of("", "", "", "", cpus=cpus)
    assert [trial.outcome for trial in trials] == ["ok"] * 4
    assert those.most_at_once <= most


def test_without_a_design_s_cpus_those_of_this_process_count(together_of, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert together_of("", "", "")[2].most_at_once == 1


def test_one_that_never_gets_ready_keeps_no_place_from_the_others_for_ever(together_of):
    trials, _, _ = together_of("never", "", "never", "", "", cpus="0")
    assert [trial.outcome for trial in trials] == ["timed_out", "ok", "timed_out", "ok", "ok"]


def test_those_that_must_not_be_held_between_steps_start_side_by_side_and_take_all_steps_in_one_turn(together_of):
    trials, log, those = together_of("", "", "", steps=5, one_turn=True)
    assert [(trial.outcome, trial.together) for trial in trials] == [("ok", 3)] * 3
    assert sorted(line[1:] for line in log) == [["0", "5", "0"]] * 3
    assert those.seen[:3] == [[]] * 3


def test_references_have_their_turns_in_all_smaller_groups_and_others_only_in_theirs(together_of):
    trials, log, those = together_of("", "", "", "", "", room=4)
    assert (
        sorted((trial.outcome, trial.together, trial.waves) for trial in trials) == [("ok", 3, 2)] + [("ok", 4, 2)] * 4
    )
    first, second = (Counter(line[0] for line in part) for part in (log[:10], log[10:]))
    assert sorted(first.values()) == [2, 2, 3, 3]
    assert sorted(second.values()) == [1, 1, 3]
    assert sorted((first + second).values()) == [3] * 5, "all have all their turns"
    assert those.seen[:10] == [[]] * 10
    assert those.seen[12:17] == [[]] * 5, "two have finished, and those that are kept are stopped again"


def test_a_reference_that_dies_in_the_first_of_two_groups_leaves_the_second(together_of):
    trials, _, those = together_of(*["dies" if arm.reference is None else "" for arm in order_of(5)], room=4)
    assert sorted((trial.outcome, trial.arm.partition(":")[0]) for trial in trials) == [
        ("failed", "baseline"), ("ok", "control"), ("ok", "e0"), ("ok", "e1"), ("ok", "e2"),
    ]  # fmt: skip
    assert all(watched.running.process.poll() is not None for watched in those)


@pytest.mark.parametrize(
    ("how", "outcome", "words"),
    [("dies", "failed", "SIGKILL"), ("hangs", "timed_out", "past its limit"), ("never", "timed_out", "past its limit"),
     ("lies", "failed", "SIGINT"), ("stays", "timed_out", "past its limit")],
)  # fmt: skip
def test_a_process_that_breaks_has_its_outcome_and_the_others_go_on(together_of, how, outcome, words):
    trials, log, _ = together_of("", how, "")
    assert [trial.outcome for trial in trials] == ["ok", outcome, "ok"]
    assert words in trials[1].reason
    whole = [line[0] for line in log if line[3] == "0"]
    assert len(set(whole)) == (3 if how == "stays" else 2)


def program_of(watched):
    """Return the process that a supervisor started."""
    supervisor = watched.running.process.pid
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(supervisor):
                return int(folder.name)
    raise AssertionError("it is not there")


def test_one_that_is_killed_while_it_is_stopped_has_its_outcome_and_the_others_go_on(together_of, monkeypatch):
    killed, take_turn = [], block.Interleaving.take_turn

    def then_killed(interleaving, member):
        take_turn(interleaving, member)
        if not killed:
            killed.append(member.name)
            assert set(states(member.running.running)) == {"T"}, "it and its child are stopped"
            os.kill(program_of(member.running.running), signal.SIGKILL)

    monkeypatch.setattr(block.Interleaving, "take_turn", then_killed)
    trials, log, those = together_of("", "", "")
    found = {trial.trial: trial for trial in trials}
    assert found[killed[0]].outcome == "failed"
    assert "SIGKILL" in found[killed[0]].reason
    assert [trial.outcome for name, trial in found.items() if name != killed[0]] == ["ok"] * 2
    assert len({line[0] for line in log if line[3] == "0"}) == 2
    assert all(watched.running.process.poll() is not None for watched in those)


@pytest.mark.parametrize("call", ["hold", "release"])
def test_an_engine_that_goes_away_between_two_turns_ends_them_all_and_nothing_is_recorded(
    together_of, monkeypatch, call
):
    """Checks that no process is left stopped; test_gone checks the message."""
    there, asked = [], itertools.count()

    def gone(_experiment, slot, error, _say):
        raise EngineGoneError(f"{slot.trial}: {error}")

    def refuse(watched):
        there.append(watched.running.process)
        if next(asked) == 4:
            raise NoTrialError("the daemon does not answer")
        getattr(watched.running, call)()

    monkeypatch.setattr(interleave, "rebuild_image", gone)
    monkeypatch.setattr(Watched, call, refuse, raising=False)
    with pytest.raises(EngineGoneError, match="the daemon does not answer"):
        together_of("", "", "")
    assert len(set(there)) >= 2
    assert [program.poll() for program in set(there)] == [0] * len(set(there))


def test_one_that_is_refused_twice_failed_and_the_others_run_without_it(together_of, monkeypatch):
    restored = []
    monkeypatch.setattr(interleave, "rebuild_image", lambda _experiment, slot, error, _say: restored.append(slot.trial))

    def start(job, argv, env):
        if job.label == "b0000-p001":
            raise NoTrialError("the engine refuses it")
        return guarded_job(job, argv, env)

    trials, log, _ = together_of("", "", "", start=start)
    assert [trial.outcome for trial in trials] == ["ok", "failed", "ok"]
    assert "refuses" in trials[1].reason
    assert restored == ["b0000-p001"] * 2
    assert len({line[0] for line in log}) == 2


def test_an_interrupt_ends_all_of_them_at_once(together_of, monkeypatch):
    count = itertools.count()

    def interrupted(*arguments):
        if next(count) == 1:
            raise KeyboardInterrupt
        return take_turn(*arguments)

    take_turn = block.Interleaving.take_turn
    monkeypatch.setattr(block.Interleaving, "take_turn", interrupted)
    programs = []

    @contextlib.contextmanager
    def start(job, argv, env):
        with guarded_job(job, argv, env) as running:
            programs.append(running.process)
            yield running

    with pytest.raises(KeyboardInterrupt):
        together_of("", "", "", start=start)
    assert [program.poll() for program in programs] == [0] * 3, (
        "each supervisor has ended what it watched, and then itself"
    )
