"""Figures as PDF: each object is at the offset in the table, and all texts and marks of the SVG are present."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from envmatrix.__main__ import main
from envmatrix.report.catalog import FIGURES
from envmatrix.report.figures.svg import svg_drawing, text_element
from envmatrix.report.figures.svg_to_pdf import to_pdf
from envmatrix.report.formats.exports import figure_pdf, figure_svg
from envmatrix.report.summary import summarise_measurements
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run


def summary(blocks=8):
    plan = make_plan(("fast", "sl(o)w\\"), max_blocks=3000)
    trials = make_trials(plan, Machine({"fast": 1.3}, noise=0.02, outcome={"sl(o)w\\": "failed"}), blocks)
    return summarise_measurements(make_run(plan), fold_trials(plan, trials))


@pytest.mark.parametrize("kind", ["forest", "time"])
@pytest.mark.parametrize("blocks", [8, 900], ids=["few trials", "many"])
def test_a_pdf_has_every_object_where_its_table_says_and_every_text_of_the_svg(kind, blocks):
    made = summary(blocks)
    pdf = figure_pdf(made, kind)
    assert pdf.isascii()
    start = int(re.search(r"startxref\n(\d+)\n%%EOF\n\Z", pdf)[1])
    assert pdf[start:].startswith("xref\n0 8\n")
    for number, place in enumerate(re.findall(r"^(\d{10}) 00000 n $", pdf[start:], re.MULTILINE), 1):
        assert pdf[int(place) :].startswith(f"{number} 0 obj\n")
    stream = re.search(r"/Length (\d+) >>\nstream\n(.*)\nendstream", pdf, re.DOTALL)
    assert len(stream[2]) == int(stream[1])
    texts = [element.text for element in ET.fromstring(figure_svg(made, kind)).iter("{http://www.w3.org/2000/svg}text")]
    assert stream[2].count(" Tj ET") == len(texts) > 5
    assert r"(sl\050o\051w\134) Tj" in stream[2]
    assert pdf == figure_pdf(made, kind)


def test_words_end_and_stand_in_the_middle_where_the_svg_has_them():
    drawn = "".join(text_element(100, 10 * n, "MMMM", kind) for n, kind in enumerate(("", "end", "mid")))
    pdf = to_pdf(svg_drawing(200, 100, "A title", "what it shows", drawn, "x"))
    assert [float(x) for x in re.findall(r"1 0 0 -1 (\S+) ", pdf)] == [100, pytest.approx(60.02), pytest.approx(80.01)]
    assert "/Title (A title)" in pdf


def test_a_character_that_the_font_lacks_is_a_question_mark_and_accents_stay():
    pdf = to_pdf(svg_drawing(200, 100, "t", "d", text_element(1, 1, "é \N{EN DASH} 日"), "x"))
    assert r"(\351 \226 ?) Tj" in pdf


@pytest.mark.parametrize(("name", "begins"), [("a.pdf", "%PDF-1.4"), ("a.PDF", "%PDF-1.4"), ("a.svg", "<?xml")])
def test_the_files_name_says_what_is_written(tmp_path, capsys, name, begins):
    write_run(tmp_path / "one", make_plan(("fast",)), Machine({}), 6)
    assert main(["figure", "forest", "one", "--results", str(tmp_path), "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text().startswith(begins)


def test_every_figure_is_drawn_of_what_a_pdf_can_hold():
    assert set(FIGURES) == {"forest", "start", "time"}, "a new figure: try it as PDF here"
