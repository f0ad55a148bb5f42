"""Interleaving in a block's script: a real shell runs it, with processes that only wait at their gates."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.block.block_instructions import Part, TrialOrder, Turns, read_order
from envmatrix.block.interleave import turn_order
from envmatrix.block.process import Place
from envmatrix.launchers.slurm.script import time_limit_s
from tests.unit.test_slurm_script import HOSTILE, Shell, job, wait_until

ROOT = Path(__file__).parents[2]
#: A process with a child that spins. In its turn it logs the turn, and whether the other processes are stopped.
TOY = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from bench.gate import Gate
name, how, shared = sys.argv[2:]
child = os.fork()
if child == 0:
    while True: pass
with open(f"{shared}/{name}.pids", "w") as file: file.write(f"{os.getpid()} {child}")
def states():
    for other in os.listdir(shared):
        if other.endswith(".pids") and other != f"{name}.pids":
            for pid in open(f"{shared}/{other}").read().split():
                try: words = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
                except OSError: continue
                if words[0] not in "ZX": yield words[0], int(words[11]) + int(words[12])
def still():
    # the states of the others once they stand, and the ticks that they worked after they were stopped
    before, deadline = dict(enumerate(states())), time.monotonic() + 5
    while {state for state, _ in states()} - {"T"} and time.monotonic() < deadline: pass
    after = list(states())
    return "".join(sorted({state for state, _ in after})), sum(ticks for _, ticks in after) - sum(
        ticks for _, ticks in before.values())
began = [other for other in os.listdir(shared) if other.endswith(".pids") and other != f"{name}.pids"]
with open(f"{shared}/{name}.unready", "w") as file:
    print(sum(not os.path.exists(f"{shared}/{other[:-5]}.ready") for other in began), end="", file=file)
if how == "late": signal.pause()
if how == "slow": time.sleep(0.3)
if how == "babbles": open(".envmatrix-gate/ready", "w").write("ready soon\\n")
open(f"{shared}/{name}.ready", "w").close()
gate, left, told = Gate(".envmatrix-gate"), 6, open(f"{shared}/turns", "a")
while left:
    turn = gate.turn(999999999 if how == "untold" else left)
    print(name, turn.apart, turn.counted, *still(), file=told, flush=True)
    left -= turn.counted
    if left == 2 and how == "dies": os.kill(os.getpid(), signal.SIGSEGV)
    if left == 2 and how == "waits":
        open(f"{shared}/waits", "w").close()
        signal.pause()
gate.wait_for_extra_seconds()
os.kill(child, signal.SIGKILL)
print("done", flush=True)
"""


def rounds(*names):
    """Return the orders of the three rounds that each toy's six steps take."""
    return [turn_order(7, 3, number, names) for number in range(3)]


class Turning(Shell):
    """Runs groups of toy processes."""

    def __init__(self, tmp_path):
        super().__init__(tmp_path)
        self.shared = tmp_path / "shared"
        self.shared.mkdir()
        self.toy = tmp_path / "toy.py"
        self.toy.write_text(TOY)

    def group(self, *ways, needs=1, limit_s=20.0, turn=2, at_once=0):
        trials = []
        for number, how in enumerate(ways, 1):
            argv = [sys.executable, str(self.toy), str(ROOT), f"t{number}", how, str(self.shared)]
            env = {"A": HOSTILE, "TOY": str(self.shared)}
            trials.append(TrialOrder(f"t{number}", f"toy {HOSTILE}", argv, env, limit_s, apart=turn))
        return Part("t1.turns", trials, Turns(7, 3, turn, needs, at_once))

    def turns(self):
        return [tuple(line.split()) for line in (self.shared / "turns").read_text().splitlines()]

    def ends(self, *names):
        return {name: self.files.end(f"t1.turns/{name}") for name in names}

    def left(self):
        """Return the trial processes that run or are stopped."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().split(b"\0")
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            found += [folder.name] if f"TOY={self.shared}".encode() in words and not dead else []
        return found


@pytest.fixture
def turning(tmp_path):
    made = Turning(tmp_path)
    yield made
    for pid in made.left():
        os.kill(int(pid), signal.SIGKILL)


def test_the_order_of_turns_is_read_as_it_was_written_and_its_time_counts_twice(tmp_path):
    own = ["/my programs", "/files", "out.json"]
    trials = [TrialOrder("b0003-p000", "base", ["/venv/bin/python", HOSTILE], {"A\n": "b\udcff\n"}, 300.0, ["HOME"],
                         Place((0, 1), (0,), (), 2**30), ["/a b"], apart=2),
              TrialOrder("b0003-p001", "own", ["x"], {}, 300.0, program=own, pauses_itself=True)]  # fmt: skip
    whole = job(tmp_path, [Part("b0003-p000.turns", trials, Turns(1, 3, 3, 2**31)), Part("t", [trials[1]])])
    (tmp_path / "order").write_text(whole.order.text())
    again = read_order(tmp_path / "order")
    assert (again.text(), again.trials[0].place) == (whole.order.text(), trials[0].place)
    assert time_limit_s(whole) == 5 * 300 + 120


def test_trials_take_turns_in_their_order_while_all_others_stand_still(turning):
    assert turning.run(turning.write([turning.group("", "", "")])) == 0
    assert [turn[:3] for turn in turning.turns()] == [
        (name, "2", "2") for order in rounds("t1", "t2", "t3") for name in order
    ]  # fmt: skip
    assert {turn[3] for turn in turning.turns()} == {"T"}
    assert sum(int(turn[4]) for turn in turning.turns()) <= 3, "hundredths of a second that others worked meanwhile"
    ends = turning.ends("t1", "t2", "t3")
    assert [(end.exit.ok, end.together, end.before, end.node) for end in ends.values()] == [(True, 3, 0, "n1")] * 3
    assert all(0 < end.exit.wall_s < 60 for end in ends.values())
    assert [(end.folder / "log").read_text() for end in ends.values()] == ["done\n"] * 3
    assert sorted(path.name for path in (turning.folder / "t1.turns").iterdir()) == ["t1", "t2", "t3"]
    assert turning.left() == []
    assert turning.run(turning.files.script(1), SLURM_RESTART_COUNT="1") == 0
    assert len(turning.files.starts()) == 3, "a job that is started again repeats nothing"


@pytest.mark.parametrize(
    ("how", "timed_out", "code"),
    [
        ("dies", False, -signal.SIGSEGV),
        ("babbles", False, None),
        ("waits", True, None),
        ("late", True, None),
    ],
)
def test_whoever_breaks_does_so_alone_and_the_others_have_all_their_turns(turning, how, timed_out, code):
    group = turning.group("", how, "", limit_s=3.0 if timed_out else 20.0)
    assert turning.run(turning.write([group])) == 0
    ends = turning.ends("t1", "t2", "t3")
    assert {name: end.exit.ok for name, end in ends.items()} == {"t1": True, "t2": False, "t3": True}
    assert ends["t2"].exit.timed_out == timed_out
    assert code in (None, ends["t2"].exit.code)
    assert [turn[0] for turn in turning.turns()].count("t3") == 3
    assert turning.left() == []


def test_as_many_get_ready_at_once_as_the_order_says(turning):
    assert turning.run(turning.write([turning.group("slow", "slow", "", at_once=1)])) == 0
    unready = [(turning.shared / f"t{place}.unready").read_text() for place in (1, 2, 3)]
    assert unready == ["0", "0", "0"], "whoever began before is ready"
    assert [(end.exit.ok, end.together) for end in turning.ends("t1", "t2", "t3").values()] == [(True, 3)] * 3


def test_a_program_that_does_not_know_how_many_turns_it_takes_has_them_until_it_ends(turning):
    assert turning.run(turning.write([turning.group("untold", "untold")])) == 0
    assert [turn[0] for turn in turning.turns()] == [name for order in rounds("t1", "t2") for name in order]
    assert all(end.exit.ok for end in turning.ends("t1", "t2").values())


def test_those_that_must_not_be_held_between_steps_start_side_by_side_and_take_all_steps_in_one_turn(turning):
    assert turning.run(turning.write([turning.group("", "", "", turn=0)])) == 0
    assert [turn[:4] for turn in turning.turns()] == [(name, "0", "6", "T") for name in rounds("t1", "t2", "t3")[0]]
    assert [(end.exit.ok, end.together) for end in turning.ends("t1", "t2", "t3").values()] == [(True, 3)] * 3
    assert turning.left() == []


def test_a_job_that_is_cancelled_leaves_nothing_stopped_and_nothing_done(turning):
    process = turning.start(turning.write([turning.group("", "waits", "")]))
    wait_until((turning.shared / "waits").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    wait_until(lambda: turning.left() == [])
    assert set(turning.ends("t1", "t2", "t3").values()) == {None}
    assert turning.files.losses("t1") == 1
    (turning.shared / "turns").unlink()
    again = turning.files.start_new_attempt()
    assert turning.run(turning.write([turning.group("", "", "")], again)) == 0
    assert len(turning.turns()) == 9, "all run again"
    assert all(end.exit.ok for end in turning.ends("t1", "t2", "t3").values())


def test_a_script_that_is_killed_alone_leaves_nothing_stopped(turning):
    process = turning.start(turning.write([turning.group("", "waits")]))
    wait_until((turning.shared / "waits").exists)
    process.kill()
    process.wait()
    wait_until(lambda: turning.left() == [])
    script = str(turning.files.script(1))
    wait_until(lambda: script not in subprocess.run(["ps", "ax"], capture_output=True, text=True, check=True).stdout)


def test_where_memory_does_not_hold_all_they_run_one_after_the_other(turning):
    assert turning.run(turning.write([turning.group("", "", needs=2**60)])) == 0
    assert [turn[0] for turn in turning.turns()] == ["t1"] * 3 + ["t2"] * 3
    assert [end.together for end in turning.ends("t1", "t2").values()] == [1, 1]
    assert "one after the other" in (turning.folder / "job-1.log").read_text()


def test_trials_whose_job_was_suspended_all_run_again_and_say_so(turning):
    process = turning.start(turning.write([turning.group("", "waits", limit_s=60.0)]))
    wait_until((turning.shared / "waits").exists)
    turning.toy.write_text(TOY.replace('how == "waits"', "0"))
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    assert [(end.exit.ok, end.repeated) for end in turning.ends("t1", "t2").values()] == [(True, 1), (True, 1)]


def test_a_group_of_a_superseded_attempt_does_not_begin(turning):
    old = turning.write([turning.group("", "")])
    turning.files.start_new_attempt()
    assert turning.run(old) == 0
    assert turning.files.starts() == []
