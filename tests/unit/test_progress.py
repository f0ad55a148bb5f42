"""What is printed while a run goes on."""

import io
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from envmatrix.runner.progress import BarProgress, LineProgress
from envmatrix.store import trial_of
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
    estimate = SimpleNamespace(headline=lambda: "no estimate yet", standing=lambda: "")
    LineProgress(EXPERIMENT, quiet=False).block_ended(0, estimate)
    assert capsys.readouterr().err == "block 1 of up to 40, at most 5 min 00 s left; no estimate yet\n"


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
