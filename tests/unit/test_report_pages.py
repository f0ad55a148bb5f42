"""The HTML pages as a reader sees them: colour contrast, narrow screens, evidence that differs."""

from __future__ import annotations

import re

import pytest

from envmatrix.report.figures import svg
from envmatrix.report.formats.history_page import history_views
from envmatrix.report.formats.history_page import to_html as history_html
from envmatrix.report.formats.html_file import code_markup, to_html
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.tables.evidence_differences import differing_and_shared_evidence
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder
from envmatrix.stats.history import History, Point, Series, read_history
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run

#: WCAG 2.2, 1.4.3 and 1.4.11: minimum contrast of text and of marks against their background.
TEXT, MARKS = 4.5, 3.0
#: Colours of text on a band; the others are only used for marks.
TEXTS = ("ink", "soft")


def brightness(colour: str) -> float:
    short = len(colour) == 4
    parts = [int(colour[1 + i] * 2 if short else colour[1 + 2 * i : 3 + 2 * i], 16) / 255 for i in range(3)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_has_the_contrast_that_the_standard_says():
    assert (contrast("#000", "#ffffff"), contrast("#777777", "#fff")) == (pytest.approx(21), pytest.approx(4.48, 0.01))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_text_and_of_marks_can_be_told_from_what_is_behind_it(scheme):
    colours = dict(re.findall(r"--(\w+):(#\w+)", re.findall(r":root\{([^}]*)\}", svg.palette())[scheme]))
    poor = {
        (name, behind): round(contrast(colours[name], colours[behind]), 2)
        for behind in ("paper", "band")
        for name in colours
        if name not in ("paper", "band", "line")
        and contrast(colours[name], colours[behind]) < (TEXT if behind == "paper" or name in TEXTS else MARKS)
    }
    assert poor == {}


@pytest.fixture(scope="module")
def summary():
    plan = make_plan(("tcmalloc", "intel-omp", "jemalloc"))
    trials = make_trials(plan, Machine({"tcmalloc": 1.3}, noise=0.02), 8)
    return summarise_measurements(make_run(plan), fold_trials(plan, trials))


def test_evidence_has_a_row_a_value_that_differs_and_says_the_rest_once(summary):
    differs, common = differing_and_shared_evidence(summary)
    assert differs["openmp.library"] == {
        "libgomp": ["baseline", "control", "tcmalloc", "jemalloc"],
        "libiomp5": ["intel-omp"],
    }
    assert common["torch.version"] == "2.13.0+cpu"
    assert not differs.keys() & common.keys()


def test_a_narrow_screen_has_the_figure_in_its_width_and_every_cell_its_heading(summary):
    page = to_html(summary)
    assert re.search(r'<div class="narrow"><svg viewBox="0 0 360 ', page)
    table = page.partition('<table class="cards sorted"')[2].partition("</table>")[0]
    cells = re.findall(r'<td class="(?:n|words)[^"]*"([^>]*)>', table)
    heads = {re.search(r'data-head="([^"]*)"', cell)[1] for cell in cells}
    assert {"speed-up", "95 % CI", "peak memory", "blocks"} <= heads
    assert "" not in heads


def history_of(tmp_path, days=14):
    """Write one run per day: torch changes on day 8, when ``fast`` loses its gain."""
    plan = make_plan(("fast",))
    for day in range(1, days + 1):
        run = make_run(plan, f"run {day:02d}", created=f"2026-01-{day:02d}T00:00:00Z")
        folder = RunFolder(tmp_path / run.name)
        folder.create(run, "version: 1\n")
        for trial in make_trials(plan, Machine({"fast": 1.2 if day < 8 else 1.0}, noise=0.01), 6, day):
            trial.document["evidence"]["torch"]["version"] = "2.13.0" if day < 8 else "2.14.0"
            folder.append(trial)
        write_reports(folder)
    return read_history(tmp_path)


def test_names_on_a_narrow_figure_stand_clear_of_the_lines_behind_them():
    plan = make_plan(("fast",))
    page = to_html(
        summarise_measurements(make_run(plan), fold_trials(plan, make_trials(plan, Machine({"fast": 1.3}), 6)))
    )
    assert re.search(r"\.narrow svg text\{paint-order:stroke;stroke:var\(--paper\)", page)


def test_the_page_of_a_history_draws_ratios_apart_from_the_machine_and_says_what_changed(tmp_path):
    history = history_of(tmp_path)
    page = history_html(history, "../my results")
    (view,) = history_views(history)
    assert view.by_ratio
    assert ">ratio to the baseline</text>" in view.figure
    assert ">throughput, samples/s</text>" in view.machine
    assert view.figure.count("<polyline") == 1, "fast over the baseline"
    assert view.machine.count("<polyline") == 2, "the baseline and its copy"
    assert 'href="../my%20results/run%2008/report.html">run 08</a>' in page
    assert re.search(r"<li>fast: x0\.8\d since <a [^>]*>run 08</a> \(2026-01-08\)</li>", page)
    assert re.search(r"<li><a [^>]*>run 08</a> \(2026-01-08\): torch.version 2.13.0 → 2.14.0</li>", page)
    assert view.figure.count('class="since"') == 1
    assert "<a " not in history_html(history).partition("<main")[2], "no way to the reports, no links"


def test_a_version_that_one_environment_alone_changed_names_it():
    points = [
        Point(f"run-{day}", f"2026-01-0{day}", 100.0, 1.1, 1.0, 1.2, versions=(("malloc.version", version),))
        for day, version in enumerate(("1", "1", "2"), 1)
    ]
    made = [Series("host", "cnn", "local", name, "samples_per_s", tuple(points[:last]), ())
            for name, last in (("fast", 3), ("slow", 2))]  # fmt: skip
    (view,) = history_views(History(3, tuple(made), ()))
    assert [(update.run, update.changes) for update in view.updates] == [
        ("run-3", (("malloc.version", "1", "2", ("fast",)),)),
    ]  # fmt: skip


def test_the_rows_can_be_put_in_another_order_without_a_script():
    plan = make_plan(("lean", "steady"))
    machine = Machine({"lean": 1.3}, noise=0.05, memory={"lean": 1e8, "steady": 9e8})
    made = summarise_measurements(make_run(plan), fold_trials(plan, make_trials(plan, machine, 8)))
    page = to_html(made)
    assert re.findall(r'class="by(\d)"( checked)?> ([^<]*)<', page) == [
        ("0", " checked", "speed-up"), ("1", "", "spread (cv)"), ("2", "", "memory"),
    ]  # fmt: skip
    rows = re.findall(r'style="--o0:(\d);--o1:(\d);--o2:(\d);"><th scope="row">(\w+)', page)
    assert [int(row[0]) for row in rows] == [0, 1, 2, 3]
    by_memory = sorted(rows, key=lambda row: int(row[2]))
    assert (by_memory[0][3], by_memory[-1][3]) == ("lean", "steady")
    assert ".by2:checked) .sorted tbody tr{order:var(--o2)}" in page


def test_regions_of_several_tables_have_a_name_each_and_commands_are_code(tmp_path):
    plan = make_plan(("tcmalloc",), workloads=("cnn", "mlp"))
    folder = write_run(tmp_path / "runs" / "one", plan, Machine({"tcmalloc": 1.3}, noise=0.02), 4)
    write_reports(folder)
    write_reports(write_run(tmp_path / "runs" / "two", plan, Machine({"tcmalloc": 1.3}, noise=0.02), 4))
    for page in ((folder.path / "report.html").read_text(), history_html(read_history(tmp_path / "runs"), "runs")):
        names = re.findall(r'role="region" aria-label="([^"]*)"', page)
        assert len(names) == len(set(names)) >= 2
    page = (folder.path / "report.html").read_text()
    assert "What to do: <code>envmatrix resume one</code> with a larger budget" in page


def test_text_between_backticks_is_code_and_stays_harmless():
    assert code_markup("a `<b>` & c") == "a <code>&lt;b&gt;</code> &amp; c"
    assert code_markup("one ` alone <b>") == "one ` alone &lt;b&gt;"
