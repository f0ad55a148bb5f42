"""The Summary and the reports made from it: correct, robust, and safe with hostile names."""

from __future__ import annotations

import html
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from rich.console import Console

from envmatrix.api.result import Result
from envmatrix.report.figures.heat_map import heat_style
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.formatting import markdown_cell
from envmatrix.report.report_data import summarise, summarise_measurements
from envmatrix.report.warning import WarningKind
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder, trial_of
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import HOST, Machine, make_environment, make_plan, make_run, make_trials, write_run

EVERYONE = ("baseline", "control", "fast", "slow")
HOSTILE = "</td></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"'`|[red]\x1b[31m\ud800\u202e\n"


class Tags(HTMLParser):
    """Collects the tags and checks that they are closed."""

    VOID = frozenset({"meta", "br", "img", "input", "link"})

    def __init__(self):
        super().__init__()
        self.seen, self.open, self.attributes = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags_of(html):
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    return tags


def printed(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=160, force_terminal=False))
    return out.getvalue()


@pytest.fixture
def made(tmp_path):
    def make(machine=None, blocks=8, environments=("fast", "slow"), **more):
        plan = make_plan(environments, **more)
        return write_run(tmp_path / "run", plan, machine or Machine({"fast": 1.25, "slow": 0.8}), blocks)

    return make


def test_summary_json_has_the_promised_keys_and_the_right_answer(made):
    folder = made()
    write_reports(folder)
    body = json.loads((folder.path / "summary.json").read_text())
    assert (body["schema"], body["run"]) == (1, "run")
    keys = {"workload", "environment", "metric", "ratio", "low", "high", "p", "verdict", "blocks", "flags"}
    assert all(keys <= set(effect) for effect in [*body["effects"], body["control"]])
    fast = next(e for e in body["effects"] if (e["environment"], e["metric"]) == ("fast", "samples_per_s"))
    assert fast["low"] < 1.25 < fast["high"]
    assert fast["verdict"] == "faster"
    row = next(row for row in body["arms"] if row["environment"] == "fast")
    assert [row[key] for key in ("ratio", "low", "high")] == [fast[key] for key in ("ratio", "low", "high")]
    assert body["control"]["low"] < 1 < body["control"]["high"]
    assert body["best"][0]["environment"] == "fast"
    assert "stand-in-data" in fast["flags"]


def test_the_terminal_names_the_best_the_noise_floor_and_the_stand_in_data(made):
    text = printed(summarise(made()))
    assert "fast is 1.2" in text
    assert "The control is a second copy of baseline. Its true speed-up is 1; measured: " in text
    assert "fashion-mnist-stand-in" in text
    assert "envmatrix export fast\n" in text


def test_what_was_found_for_a_program_is_exported_from_its_run_which_alone_has_the_matrix(made):
    summary = summarise(made())
    run = summary.run.model_copy(update={"command": ("bench", "--quiet", "--", "python", "train.py")})
    assert "envmatrix export fast --run run\n" in printed(replace(summary, run=run))


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_the_terminal(made, width):
    long = "malloc-glibc-tuned+openmp-intel"
    machine = Machine({long: 1.25}, loss={"slow": 0.9})
    folder = made(machine, environments=(long, "slow"), workloads=("cnn", "mlp", "lstm", "transformer"))
    out = io.StringIO()
    print_summary(summarise(folder), Console(file=out, width=width, force_terminal=False))
    lines = out.getvalue().splitlines()
    rows = [line for line in lines if line.startswith("  control ")]
    assert all("8" in line.split() for line in rows[:4]), "no column is cut off"
    assert ("MiB" in "".join(rows)) == (width == 140)


def test_an_environment_that_did_other_work_is_never_called_the_best(made):
    summary = summarise(made(Machine({"fast": 2.0, "slow": 1.3}, loss={"fast": 0.9})))
    assert summary.groups[0].best.arm.environment == "slow"
    assert WarningKind.UNEQUAL_WORK in {caution.kind for caution in summary.cautions}


@pytest.mark.parametrize(
    ("machine", "blocks", "kind"),
    [
        (Machine({}), 0, WarningKind.NOTHING_MEASURED),
        (Machine({}, outcome=dict.fromkeys(EVERYONE, "failed")), 3, WarningKind.NOTHING_MEASURED),
        (Machine({}, outcome={"baseline": "failed"}), 7, WarningKind.NO_REFERENCE),
        (Machine({}), 1, WarningKind.TOO_FEW_BLOCKS),
        (Machine({}, outcome={"slow": "invalid"}), 7, WarningKind.INVALID),
        (Machine({}, outcome={"slow": "timed_out"}), 7, WarningKind.FAILED),
    ],
    ids=["no trial", "all failed", "no baseline", "one block", "invalid", "timed out"],
)  # fmt: skip
def test_a_poor_run_still_gets_every_report_and_a_warning_with_a_remedy(made, machine, blocks, kind):
    folder = made(machine, blocks)
    summary = write_reports(folder)
    assert kind in {caution.kind for caution in summary.cautions}
    assert all(caution.remedy and caution.text for caution in summary.cautions)
    assert printed(summary)
    tags_of((folder.path / "report.html").read_text())
    json.loads((folder.path / "summary.json").read_text(), parse_constant=pytest.fail)


def test_no_best_is_named_when_nothing_is_shown_to_be_faster(made):
    summary = summarise(made(Machine({"fast": 1.0, "slow": 0.7})))
    assert summary.groups[0].best is None
    assert summary.groups[0].headline == "No environment is significantly faster than baseline."


def test_amounts_of_work_that_differ_a_little_are_told_as_different_numbers_beside_the_verdict():
    plan = make_plan(("fast",))
    trials = list(make_trials(plan, Machine({"fast": 1.3}), 8))
    for trial in trials:
        trial.document["result"]["parameters"] += trial.environment == "fast"
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    (found,) = [caution.text for caution in summary.cautions if caution.kind is WarningKind.UNEQUAL_WORK]
    assert "parameters 1,630,091, reference 1,630,090" in found
    for text in (printed(summary), to_markdown(summary), to_html(summary)):
        assert "faster, other work" in re.sub("<[^>]*>", "", text)


def test_no_sentence_of_the_markdown_is_cut_however_many_it_names(made):
    names = tuple(f"environment-number-{number:02}" for number in range(12))
    summary = summarise(made(Machine(dict.fromkeys(names, 1.3), loss=dict.fromkeys(names, 0.9)), environments=names))
    long = replace(summary.cautions[0], text="seen " * 100, remedy="do " * 150 + "this")
    markdown = to_markdown(replace(summary, cautions=(long,)))
    assert f"**{summary.groups[0].headline}**" in markdown
    assert long.remedy in markdown
    assert long.text.strip() in markdown


def test_a_run_that_raced_says_who_stopped_and_why(made):
    machine = Machine({"fast": 1.3, "slow": 0.7}, noise=0.01, stand_in=False)
    folder = made(machine, 20, environments=("fast", "slow"), race=True)
    summary = write_reports(folder)
    assert [item.arm for item in summary.race.stopped] == ["slow:cnn@local"]
    assert "slow:cnn@local after 6 blocks: not the best" in (folder.path / "report.html").read_text()


def test_a_factorial_run_shows_what_each_factor_brings(tmp_path):
    cells = {"baseline": ("glibc", "gnu"), "t": ("tc", "gnu"), "i": ("glibc", "intel"), "ti": ("tc", "intel")}
    levels = {
        name: make_environment(name, dict(zip(("malloc", "openmp"), cell, strict=True))) for name, cell in cells.items()
    }
    plan = make_plan(tuple(cells)[1:], workloads=("cnn", "mlp"))
    speed = {"t": 1.25, "i": 1.1, "ti": 1.375}
    folder = write_run(tmp_path / "run", plan, Machine(speed, noise=0.01), 8, environments=levels)
    summary = write_reports(folder)
    page = (folder.path / "report.html").read_text()
    assert {share.factor for share in summary.attributions[0].shares} == {"malloc", "openmp"}
    assert "What brings the gain of ti: cnn on local" in page
    assert "Environments and workloads" in page
    tags_of(page)


def test_workloads_without_a_second_environment_have_no_table_of_environments(tmp_path):
    """Guards against a table with nine columns and no row, as for the design `parallel`."""
    plan = make_plan((), workloads=("cnn", "mlp"))
    folder = write_run(tmp_path / "run", plan, Machine({}, noise=0.01), 2)
    write_reports(folder)
    page = (folder.path / "report.html").read_text()
    assert page.count("<h3>Every trial over time") == 2
    assert "Environments and workloads" not in page


@pytest.mark.parametrize("ratio", [0.1, 9.0])
def test_the_deepest_colour_of_the_table_of_workloads_leaves_its_figure_readable(ratio):
    """At 70 %, axe reported less than 4.5:1 on a dark page."""
    assert " 45%," in heat_style(SimpleNamespace(flags=(), ratio=ratio))


def test_a_cumulative_design_shows_what_each_step_adds(tmp_path):
    plan = make_plan(("a", "b"))
    design = {"cumulative": ["a", "b"]}
    folder = write_run(tmp_path / "run", plan, Machine({"a": 1.1, "b": 1.3}, noise=0.01), 8, design=design)
    summary = write_reports(folder)
    assert [step.environment for step in summary.cumulative["cnn on local"]] == ["a", "b"]
    assert "What each step adds" in (folder.path / "report.html").read_text()


def hostile_run(path):
    name = HOSTILE.replace("\ud800", "")
    plan = make_plan((name, "b\\|*_`<b>"), workloads=(name,), design=name)
    run = make_run(plan, name.replace("/", "|"), host=replace(HOST, name=HOSTILE, cpu_model=HOSTILE),
                   versions={HOSTILE: HOSTILE}, command=(HOSTILE,), skipped={plan.arms[3].name: HOSTILE})  # fmt: skip
    folder = RunFolder(path)
    folder.create(run, name)
    for trial in make_trials(plan, Machine({}), 7):
        trial.document["evidence"]["malloc"]["library"] = HOSTILE
        trial.document["data"]["name"] = HOSTILE
        folder.append(trial)
    control = next(slot for slot in plan.block(7) if slot.arm.is_control)
    folder.append(trial_of(control, "failed", HOSTILE, node=HOSTILE))
    return folder


def test_hostile_names_and_reasons_stay_text_everywhere(tmp_path):
    folder = hostile_run(tmp_path / "run")
    summary = write_reports(folder)
    tags = tags_of((folder.path / "report.html").read_text())
    assert not tags.seen & {"script", "img"}
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    markdown = (folder.path / "report.md").read_text()
    assert "<script" not in markdown
    assert "<img" not in markdown
    lines = [line.replace("\\|", "") for line in markdown.splitlines() if line.startswith("| ")]
    widths = {len(line.split("|")) for line in lines}
    assert widths <= {4, 6, 14}, "no cell breaks its table"
    assert "\x1b" not in printed(summary) + markdown


def test_a_notebook_shows_the_answer_and_the_table_as_plain_text_and_loads_nothing(made, tmp_path):
    summary = summarise(made())
    page = Result.of(RunFolder(tmp_path / "run"))._repr_html_()
    assert summary.groups[0].headline in html.unescape(page)
    assert re.findall(r"<tr><td[^>]*>([^<]*)</td>", page) == ["baseline", "fast", "slow", "control"]
    hostile = tags_of(Result.of(hostile_run(tmp_path / "hostile"))._repr_html_())
    assert hostile.seen <= {"p", "b", "code", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert {name for name, _ in hostile.attributes} == {"scope", "style"}


def test_the_page_loads_nothing_from_elsewhere(made):
    tags = tags_of(to_html(summarise(made())))
    links = [value for name, value in tags.attributes if name in {"src", "href", "action", "data"}]
    assert "#results" in links
    assert [link for link in links if not link.startswith("#")] == []
    assert "script" not in tags.seen


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("bench", "--name", "x", "--results", "my runs"), "envmatrix bench --name x --results 'my runs'\n"),
        ((), "envmatrix bench quick --seed 1\n"),
    ],
)
def test_the_page_shows_the_whole_command_as_a_shell_takes_it(command, shown):
    run = make_run(make_plan(("fast",)), command=command)
    page = html.unescape(to_html(summarise_measurements(run, fold_trials(run.plan, []))))
    assert shown + "envmatrix report made-up" in page


@pytest.mark.parametrize(
    ("text", "cell"),
    [("a < b & c > d", "a &lt; b &amp; c &gt; d"), ("&lt;", "&amp;lt;"), ("[x](y) `z` $1", "\\[x\\](y) \\`z\\` \\$1")],
)
def test_markdown_shows_a_text_as_it_is(text, cell):
    assert markdown_cell(text) == cell


def test_groups_of_workloads_and_engines_each_have_their_table(made):
    summary = summarise(made(Machine({"fast": 1.3}), workloads=("cnn", "mlp"), engines=("local", "docker")))
    assert [(g.workload, g.engine) for g in summary.groups] == [
        ("cnn", "local"), ("cnn", "docker"), ("mlp", "local"), ("mlp", "docker"),
    ]  # fmt: skip
    assert to_markdown(summary).count("| environment |") == 4
    assert "baseline (against baseline on local)" in to_markdown(summary).replace("\\", "")


def test_a_very_long_run_does_not_make_a_very_large_page(made):
    summary = summarise(made(blocks=1200, environments=("fast", "slow"), max_blocks=2000))
    assert len(to_html(summary)) < 400_000
