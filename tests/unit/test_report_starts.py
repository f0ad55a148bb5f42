"""Start-up times and steadiness of environments in every report, with and without steady-state runs."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan.steady_state_runs_after_blocks import steady_state_slot
from envmatrix.report.catalog import draw_figure
from envmatrix.report.formats.exports import figure_svg
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.formatting import NONE
from envmatrix.report.report_data import summarise
from envmatrix.report.tables.starts import step_time_sparkline
from envmatrix.report.warning import WarningKind
from envmatrix.results import trial_of
from envmatrix.stats.steady_state.startup import only_first_seconds_note
from tests.synthetic import Machine, make_plan, write_run

COURSES = {
    "baseline": np.zeros(400),
    "fast": np.where(np.arange(400) < 60, -0.3, 0.0),
    "slow": np.where(np.arange(400) < 330, 0.0, 0.4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    plan = make_plan(("baseline", "fast", "slow", "broken"))
    return write_run(tmp_path_factory.mktemp("runs") / "run", plan, Machine({"fast": 1.25, "slow": 0.8}), 8)


@pytest.fixture(scope="module")
def looked(folder):
    """Return the summary of a run with a steady-state run of each environment, one of which failed."""
    before = summarise(folder)
    chance = np.random.default_rng(1)
    for number, arm in enumerate(folder.load().arms):
        slot = steady_state_slot(number, arm, 10.0)
        if arm.environment in COURSES:
            steps = [int(s) for s in 25e6 * np.exp(COURSES[arm.environment] + chance.normal(0, 0.02, 400))]
            body = {
                "schema": 1,
                "timing": {"steps_ns": steps, "startup_ns": 2 * 10**9, "look_s": 10.0},
                "result": {"samples": 64 * 400},
            }
            folder.append_steady_state_run(trial_of(slot, "ok", wall_s=14.0, document=body))
        elif arm.environment == "broken":
            folder.append_steady_state_run(trial_of(slot, "failed", "it </svg> broke", wall_s=1.0))
    assert before.analysis.effects == summarise(folder).analysis.effects, "looks count in no comparison"
    return summarise(folder)


def rows(summary):
    return {row[0]: row for row in summary.tables["starts"].table.rows}


def printed(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200, force_terminal=False))
    return out.getvalue()


def test_each_environment_has_its_first_steps_its_state_and_its_own_change(looked):
    found = rows(looked)
    assert set(found) == {"baseline", "fast", "slow", "broken"}
    assert found["baseline"][1:4] == ("2 s", "30", "6.25 s")
    assert found["baseline"][4:6] == ("flat", "0%")
    assert found["fast"][4].startswith("slow-down, 60 steps (1.1")
    assert found["fast"][5] in ("-25%", "-26%", "-27%"), "steps of e^-0.3 of the time became whole ones"
    assert found["slow"][4:6] == ("not steady", NONE)
    assert found["broken"][4:] == ("no look", NONE, NONE)


def test_what_is_not_steady_and_what_times_its_warm_up_is_warned_of(looked):
    warned = {item.kind: item for item in looked.cautions}
    assert warned[WarningKind.NOT_STEADY].subject == "slow"
    late = warned[WarningKind.TIMES_WARM_UP]
    assert (late.subject, late.text) == (
        "fast", "trials measure steps 11 to 30, but fast is steady only from step 61 on",
    )  # fmt: skip
    assert "`warmup_steps: 60` in workload cnn" in late.remedy


def test_an_answer_of_the_first_seconds_of_a_program_says_so_in_every_report(folder):
    summary = summarise(folder)
    said = "Only the first seconds are measured: each trial times its steps 11 to 30 (3.95 s)."
    for told in (to_markdown(summary), to_html(summary), printed(summary)):
        assert said in told.replace("\n", " ")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"options": {"warmup_steps": 30}}, True),
        ({"options": {"warmup_steps": 31}}, False),
        ({"command": ["python", "x.py"]}, False),
    ],
)
def test_it_is_not_said_of_ten_seconds_and_more_nor_of_programs_of_ones_own(folder, body, says):
    summary = summarise(folder)
    workload = Workload.model_validate({"name": "cnn", **body})
    assert bool(only_first_seconds_note(summary.plan.arms[0], summary.measured, workload)) is says


def test_every_report_tells_it(looked):
    for told in (to_markdown(looked), to_html(looked)):
        assert "slow-down, 60 steps" in told
        assert "steady rate" not in told, "rates of processes that ran minutes apart would be divided"
        assert "not steady" in told
    assert "Step times from the first step on</h3>" in to_html(looked)
    body = json.loads(json.dumps(summary_to_json(looked)))
    start = next(item for item in body["starts"] if item["environment"] == "fast")
    assert (start["steady"]["kind"], start["steady"]["steps"]) == ("slow-down", 60)


def test_the_curve_is_a_figure_with_a_line_for_each_look(looked):
    drawn = draw_figure("start", looked, looked.groups[0])
    assert drawn.count("<polyline") == 3


def test_a_run_without_looks_has_its_first_steps_and_nothing_is_invented(tmp_path):
    folder = write_run(tmp_path / "old", make_plan(("baseline", "fast")), Machine({}), 6)
    summary = summarise(folder)
    assert summary.tables["starts"].table.head == ("environment", "start-up", "steps", "time to steps")
    assert "first to steady" not in to_markdown(summary)
    assert "Step times from the first step on</h3>" not in to_html(summary)
    assert draw_figure("start", summary, summary.groups[0]) == ""
    with pytest.raises(InputError, match="no long look"):
        figure_svg(summary, "start")
    assert not {WarningKind.NOT_STEADY, WarningKind.TIMES_WARM_UP} & {item.kind for item in summary.cautions}
    assert "start and steady state" not in printed(summary), "the terminal tells of looks alone"


def test_a_line_of_step_times_is_high_where_steps_are_slow():
    found = step_time_sparkline([(float(at), 2.0 if at < 8 else 1.0) for at in range(16)])
    assert found == "█" * 8 + "▁" * 8
    assert step_time_sparkline([]) == NONE
    assert step_time_sparkline([(1.0, 1.0), (16.0, 1.0)]).strip(" ▁") == ""
