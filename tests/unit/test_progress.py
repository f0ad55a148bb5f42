"""Progress output during a run."""

import io
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from envmatrix.matrix.model import Workload
from envmatrix.results import trial_of
from envmatrix.runner.progress import BarProgress, LineProgress
from envmatrix.runner.running_estimate import decision_forecast, total_blocks_for_width
from envmatrix.system.progress import Heartbeat
from envmatrix.trials.user_program import hooks
from tests.synthetic import make_plan

PLAN = make_plan(())
EXPERIMENT = SimpleNamespace(plan=PLAN, folder=SimpleNamespace(logs=Path("logs")))


@pytest.mark.parametrize("bar", [False, True])
def test_a_trials_last_words_cannot_steer_the_terminal(capsys, bar):
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    progress = BarProgress(EXPERIMENT, console) if bar else LineProgress(EXPERIMENT, quiet=False)
    progress.trial_ended(trial_of(PLAN.block(0)[0], "failed", "the process ended: \x1b]0;title\x07\x9b2J"))
    said = console.file.getvalue() if bar else capsys.readouterr().err
    assert "failed: the process ended: " in said
    assert not {"\x1b]", "\x07", "\x9b"} & {said[at : at + size] for at in range(len(said)) for size in (1, 2)}


def test_a_block_may_end_before_any_trial_of_this_start_began(capsys):
    estimate = SimpleNamespace(early_headline=lambda: "")
    LineProgress(EXPERIMENT, quiet=False).block_ended(0, estimate, 300.0, 5.0)
    assert capsys.readouterr().err == "block 1 of up to 40, at most 5 min 00 s left; first verdict after block 6\n"


def test_no_more_time_is_left_than_the_last_block_takes(capsys):
    """Guards against "16666 min left" for a budget of 12 days and 40 blocks of 10 s."""
    estimate = SimpleNamespace(early_headline=lambda: "")
    LineProgress(EXPERIMENT, quiet=False).block_ended(0, estimate, 1e6, 1e5)
    assert capsys.readouterr().err == "block 1 of up to 40, at most 6 min 30 s left; first verdict after block 6\n"
    bar = BarProgress(EXPERIMENT, Console(file=io.StringIO(), force_terminal=True))
    bar.block_ended(0, estimate, 1e6, 1e5)
    bar.trial_begins(PLAN.block(1)[0], 1e6)
    assert bar.bar.tasks[0].fields["left"] in ("6 min 30 s", "6 min 29 s")


def test_what_is_open_is_told_with_the_block_at_which_it_will_be_known_once_a_claim_can_be_made():
    said = []
    estimate = SimpleNamespace(
        early_headline=lambda: "still open: book",
        headline=lambda: "none ahead so far",
        decision_forecast=lambda ends: f"known by then ({ends:.0f})",
    )
    progress = LineProgress(EXPERIMENT, quiet=False, tell=said.append)
    progress.block_ended(PLAN.min_blocks - 2, estimate, 60.0, 2.0)
    progress.block_ended(PLAN.min_blocks - 1, estimate, 30.0, 1.0)
    progress.block_ended(PLAN.max_blocks - 1, estimate, 30.0, 1.0)
    assert said.pop().startswith("block 40 of up to 40; none ahead so far; "), "no time is left to be told"
    assert said == [
        "block 5 of up to 40, at most 1 min 00 s left; still open: book; first verdict after block 6",
        f"block {PLAN.min_blocks} of up to 40, at most 30 s left; none ahead so far; "
        f"known by then ({PLAN.min_blocks + 1})",
    ]


def effect(name, half_width, blocks=6):
    return SimpleNamespace(environment=name, workload="cnn", engine="local", half_width=half_width, blocks=blocks)


def test_twice_the_width_takes_somewhat_fewer_than_four_times_the_blocks():
    assert total_blocks_for_width(effect("a", 0.04, 20), 0.02) == 72  # t(19) is 2.093, t(71) 1.994
    assert total_blocks_for_width(effect("a", 0.02, 20), 0.02) == 20
    assert total_blocks_for_width(effect("a", 0.0201, 20), 0.02) == 21
    assert total_blocks_for_width(effect("a", None), 0.02) is None


def test_the_outlook_names_what_is_known_first_and_nothing_that_is_known_already():
    found = [effect("wide", 0.06), effect("near", 0.03), effect("done", 0.01), effect("unknown", None)]
    assert decision_forecast(found, 0.02, 9.4) == "±2.0% at about block: near 11, wide 33 (the budget ends at about 9)"
    many = [effect(f"e{number}", 0.03) for number in range(8)]
    assert ", 2 more by 11 (" in decision_forecast(many, 0.02, 9)
    assert decision_forecast(found[2:], 0.02, 9) == ""
    far = [effect("near", 0.03), effect("far", 0.7), effect("farther", 0.8)]
    assert decision_forecast(far, 0.02, 9).startswith("±2.0% at about block: near 11; far, farther beyond 2000 (the")
    assert decision_forecast([effect("hopeless", 0.7)], 0.02, 9).startswith(
        "±2.0% at about block: hopeless beyond 2000 ("
    )


def test_of_a_long_trial_something_is_said_now_and_then_until_it_ends():
    said, enough = [], threading.Event()

    def tell(text):
        said.append(text)
        if len(said) == 2:
            enough.set()

    progress = LineProgress(EXPERIMENT, quiet=False, tell=tell, every_s=0.01)
    slot = PLAN.block(0)[1]
    progress.trial_begins(slot, 100.0)
    assert enough.wait(60), "it says so as long as the trial runs"
    progress.trial_ended(trial_of(slot, "ok"))
    assert said[0] == f"block 1, trial 2 of {len(PLAN.arms)}: {slot.arm.environment} runs, for 0 s"


def test_of_a_long_setup_something_is_said_now_and_then_too(monkeypatch, tmp_path):
    said, enough = [], threading.Event()
    monkeypatch.setattr(hooks, "Heartbeat", partial(Heartbeat, every_s=0.01))
    monkeypatch.setattr(
        hooks, "_run_hook", lambda *_: enough.wait(60) and SimpleNamespace(exit=SimpleNamespace(ok=True))
    )

    def tell(text):
        said.append(text)
        if len(said) == 2:
            enough.set()

    hooks.run_setup([Workload(name="mine", command=("true",), setup=("fetch", "data"))], tell)
    assert said == ["setup of mine: fetch data", "setup of mine is running, for 0 s"]


def test_of_those_that_take_turns_no_single_one_is_named():
    said, told = [], threading.Event()
    progress = LineProgress(EXPERIMENT, quiet=False, tell=lambda text: (said.append(text), told.set()), every_s=0.01)
    progress.trial_begins(PLAN.block(0)[1], 100.0, 8)
    assert told.wait(60)
    progress.close()
    assert said[0] == "block 1: 8 interleaved processes run, for 0 s"
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    bar = BarProgress(EXPERIMENT, console)
    bar.trial_begins(PLAN.block(0)[1], 100.0, 8)
    assert bar.bar.tasks[0].fields["now"] == "8 interleaved"


def test_a_long_estimate_is_below_the_bar_and_cuts_nothing_of_it():
    console = Console(file=io.StringIO(), width=80)
    bar = BarProgress(EXPERIMENT, console)
    bar.trial_begins(PLAN.block(0)[0], 100.0)
    bar.bar.update(bar.task, best=f"still open: {', '.join(f'environment-{number}' for number in range(9))}")
    console.print(bar.bar.get_renderable())
    first, *estimate = console.file.getvalue().splitlines()
    assert first.split()[1:3] == ["block", "1"]
    assert first.rstrip().endswith(PLAN.block(0)[0].arm.environment)
    assert "\N{HORIZONTAL ELLIPSIS}" not in console.file.getvalue()
    assert " ".join(" ".join(estimate).split()) == bar.bar.tasks[0].fields["best"]


def test_quiet_means_quiet_of_long_trials_too():
    progress = LineProgress(EXPERIMENT, quiet=True, tell=pytest.fail, every_s=0.001)
    progress.trial_begins(PLAN.block(0)[0], 100.0)
    assert progress.ticker is None


def test_where_the_output_of_a_trial_that_broke_lies_is_told(tmp_path):
    said = []
    slot = PLAN.block(0)[0]
    (tmp_path / f"{slot.trial}.log").write_text("...")
    experiment = SimpleNamespace(plan=PLAN, folder=SimpleNamespace(logs=tmp_path))
    LineProgress(experiment, quiet=True, tell=said.append).trial_ended(trial_of(slot, "failed", "it broke"))
    assert said[0].endswith(f"failed: it broke (log: {tmp_path / slot.trial}.log)")
