"""Figures as PDF: all texts of the SVG, in its colours and at its positions."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

import pytest

from envmatrix.__main__ import main
from envmatrix.report.catalog import FIGURES
from envmatrix.report.figures import svg
from envmatrix.report.figures.svg_to_pdf import to_pdf
from envmatrix.report.formats.exports import figure_pdf, figure_svg
from envmatrix.report.report_data import summarise_measurements
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run


@pytest.fixture
def readable(monkeypatch):
    """Have reportlab write its operators as text."""
    pytest.importorskip("svglib")
    monkeypatch.setattr(pytest.importorskip("reportlab.rl_config"), "pageCompression", 0)


def summary(blocks=8):
    plan = make_plan(("fast", "sl(o)w\\"), max_blocks=3000)
    trials = make_trials(plan, Machine({"fast": 1.3}, noise=0.02, outcome={"sl(o)w\\": "failed"}), blocks)
    return summarise_measurements(make_run(plan), fold_trials(plan, trials))


@pytest.mark.parametrize("kind", ["forest", "time"])
@pytest.mark.parametrize("blocks", [8, 900], ids=["few trials", "many"])
def test_a_pdf_has_every_text_of_the_svg_and_is_the_same_every_time(readable, kind, blocks):
    made = summary(blocks)
    pdf = figure_pdf(made, kind)
    texts = [element.text for element in ET.fromstring(figure_svg(made, kind)).iter("{http://www.w3.org/2000/svg}text")]
    assert pdf.count(b" Tj") == len(texts) > 5
    assert rb"(sl\(o\)w\\) Tj" in pdf
    assert pdf == figure_pdf(made, kind)


def test_words_end_and_stand_in_the_middle_where_the_svg_has_them(readable):
    drawn = "".join(svg.text(100, 10 * n, "MMMM", kind) for n, kind in enumerate(("", "end", "mid")))
    pdf = to_pdf(svg.drawing(200, 100, "A title", "what it shows", drawn, "x")).decode("latin-1")
    starts = [float(x) for x in re.findall(r"(\S+) \S+ Tm \(MMMM", pdf)]
    assert starts == [100, pytest.approx(60.016), pytest.approx(80.008)]
    assert "/MediaBox [ 0 0 150 75 ]" in pdf, "200 times 100 pixels of 1/96 inch"
    assert "/Title (A title)" in pdf


def test_colours_come_from_classes_inherited_ones_too_and_bold_is_bold(readable):
    mark = '<circle cx="9" cy="9" r="4" class="mark"/>'
    drawn = f'<g class="faster">{mark}</g><g class="k1">{mark}</g>{svg.text(1, 1, "A", "soft bold")}'
    pdf = to_pdf(svg.drawing(200, 100, "t", "d", drawn, "x")).decode("latin-1")
    fills = re.findall(r"^(\S+) (\S+) (\S+) rg$", pdf, re.MULTILINE)
    hexes = ["".join(f"{round(255 * float(part)):02x}" for part in fill) for fill in fills]
    assert [one for one in hexes if one != "000000"] == ["15803d", "c2410c", "59636e"]
    assert "/Helvetica-Bold" in pdf


@pytest.mark.parametrize(("name", "begins"), [("a.pdf", b"%PDF-1."), ("a.PDF", b"%PDF-1."), ("a.svg", b"<?xml")])
def test_the_files_name_says_what_is_written(readable, tmp_path, name, begins):
    write_run(tmp_path / "one", make_plan(("fast",)), Machine({}), 6)
    assert main(["figure", "forest", "one", "--results", str(tmp_path), "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_without_svglib_a_message_says_what_to_install_or_to_take_instead(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "svglib.svglib", None)
    write_run(tmp_path / "one", make_plan(("fast",)), Machine({}), 6)
    assert main(["figure", "forest", "one", "--results", str(tmp_path), "--output", str(tmp_path / "a.pdf")]) == 2
    told = capsys.readouterr().err
    assert "-m pip install svglib" in told
    assert "FILE.svg" in told


def test_every_figure_is_drawn_of_what_a_pdf_can_hold():
    assert set(FIGURES) == {"forest", "start", "time"}, "a new figure: try it as PDF here"
