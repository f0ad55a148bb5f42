"""What is printed while a run goes on."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from envmatrix.runner.progress import BarProgress, LineProgress
from envmatrix.store import trial_of
from tests.synthetic import make_plan

PLAN = make_plan(())
EXPERIMENT = SimpleNamespace(plan=PLAN)


@pytest.mark.parametrize("bar", [False, True])
def test_a_trials_last_words_cannot_steer_the_terminal(capsys, bar):
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    progress = BarProgress(EXPERIMENT, console) if bar else LineProgress(EXPERIMENT, quiet=False)
    progress.trial_ended(trial_of(PLAN.block(0)[0], "failed", "the process ended: \x1b]0;title\x07\x9b2J"))
    said = console.file.getvalue() if bar else capsys.readouterr().err
    assert "failed: the process ended: " in said
    assert not {"\x1b]", "\x07", "\x9b"} & {said[at : at + size] for at in range(len(said)) for size in (1, 2)}


def test_a_block_may_end_before_any_trial_of_this_start_began(capsys):
    estimate = SimpleNamespace(headline=lambda: "no estimate yet")
    LineProgress(EXPERIMENT, quiet=False).block_ended(0, estimate)
    assert capsys.readouterr().err == "block 1 of up to 40, at most 5 min 00 s left; no estimate yet\n"
