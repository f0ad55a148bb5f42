"""Efficiency by number of processes, from a factor called ``processes``."""

from __future__ import annotations

from dataclasses import replace

from envmatrix.plan import Arm
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.group import Group, Row, scaling_sentence
from envmatrix.report.report_data import summarise_measurements
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import THROUGHPUT
from tests.synthetic import Machine, make_plan, make_run, make_trials


def row(name: str, processes: str, ratio: float | None = None, **levels: str) -> Row:
    arm = Arm(f"{name}:ddp@local", name, name, "ddp", "local", None if ratio is None else "one:ddp@local")
    fields = dict.fromkeys(Effect.__dataclass_fields__)
    known = {"ratio": ratio, "low": ratio and ratio - 0.2, "high": ratio and ratio + 0.2}
    effect = None if ratio is None else Effect(**{**fields, **known})  # type: ignore[arg-type]
    return Row(arm, effect, None, None, None, {}, {"processes": processes, **levels}, "", (), "")


def group(*rows: Row, baseline: str = "1") -> Group:
    return Group("ddp", "local", THROUGHPUT, row("one", baseline), None, rows)


def test_efficiency_is_speed_up_per_process_with_its_interval() -> None:
    sentence = scaling_sentence(group(row("two", "2", 1.6)))
    assert sentence == "efficiency (speed-up per process, 1 is 100 %): 2 processes 80% [70%, 90%]"
    both = scaling_sentence(group(row("four", "4", 2.0), row("two", "2", 1.6)))
    assert both is not None
    assert both.startswith(f"{sentence}, 4 processes 50% ")


def test_a_baseline_of_two_processes_counts_from_there() -> None:
    sentence = scaling_sentence(group(row("four", "4", 2.0), baseline="2"))
    assert str(sentence).startswith("efficiency (speed-up per process, 2 is 100 %): 4 processes 100% ")


def test_without_numbers_of_processes_or_with_other_changes_nothing_is_claimed() -> None:
    assert scaling_sentence(group(row("x", "4", 2.0), baseline="default")) is None
    assert scaling_sentence(group(row("x", "4", 2.0), baseline="\u00b2")) is None
    assert scaling_sentence(group(row("same", "1", 1.1))) is None
    assert scaling_sentence(group(row("other", "2", 1.5, malloc="tcmalloc"))) is None
    unmeasured = replace(row("two", "2", 1.0), effect=None)
    assert "2 processes not measured" in str(scaling_sentence(group(unmeasured)))


def test_every_form_of_a_report_that_people_read_tells_the_efficiency() -> None:
    plan = make_plan(("two",))
    run = make_run(plan)
    made = {
        name: replace(one, levels={"processes": "2" if name == "two" else "1"})
        for name, one in run.environments.items()
    }
    trials = make_trials(plan, Machine({"two": 1.6}, noise=0.01), 8)
    summary = summarise_measurements(run.model_copy(update={"environments": made}), fold_trials(plan, trials))
    for told in (to_html(summary), to_markdown(summary)):
        assert "efficiency (speed-up per process, 1 is 100 %): 2 processes 81%" in told
