"""The page of an atlas: what is drawn, how it is escaped, and how long it takes."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from envmatrix.__main__ import main
from envmatrix.report.formats.atlas_page import to_html
from envmatrix.results.atlas_entries import AtlasEntry, ProcessorFacts, digest
from envmatrix.stats.meta_analysis.atlas import read_atlas
from tests.unit.test_atlas import EFFECT, entry, steady


def test_the_page_draws_every_environment_on_every_machine_and_tells_what_holds(tmp_path, capsys):
    folder = tmp_path / "atlas"
    folder.mkdir()
    ratios = (1.10, 1.12, 1.13, 1.14, 1.15, 1.17)
    for number, ratio in enumerate(ratios):
        one = entry(number, ratio=ratio, low=ratio - 0.02, high=ratio + 0.02, variance=1e-4)
        text = one.model_dump_json(by_alias=True)
        (folder / f"run-{digest(text)}.json").write_text(text)
    assert main(["atlas", "show", "--from", str(folder), "--output", str(tmp_path / "atlas.html")]) == 0
    page = (tmp_path / "atlas.html").read_text()
    assert capsys.readouterr().out == f"{tmp_path / 'atlas.html'}\n"
    assert "<script" not in page
    assert "(malloc: fast)</span>: faster on 6 of 6 machines, ratios 1.10 to 1.17</li>" in page
    for figure in re.findall(r"<svg viewBox.*?</svg>", page):
        assert [f"8 x CPU {number}" in figure for number in range(6)] == [True] * 6
        assert figure.count('class="bar"') == 7, "six machines and the average"
        assert figure.count('class="thin"') == 1, "the prediction"
    general = page.partition("Between machines, table")[2].partition("</table>")[0]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", general)[:3] == ["6", "1.13", "1.11 to 1.16"]


def test_later_steps_are_drawn_below_the_first_ones_and_are_in_the_tables():
    page = to_html(read_atlas([entry(number, steady=steady(1.0 + number / 100)) for number in range(3)]))
    for figure in re.findall(r"<svg viewBox.*?</svg>", page):
        assert figure.count('class="bar"') == 4, "the average and each machine"
        assert figure.count("0.98 to 1.02") == (1 if "wide1" in figure else 0)
        assert "below them, later steps" in figure
    assert "fast, later steps" in page.partition("Between machines, table")[2].partition("</table>")[0]
    assert "verdict, later" in page.partition("Each machine, table")[2].partition("</table>")[0]


def test_a_page_of_many_machines_draws_each_as_a_line_with_its_name_as_a_hint():
    page = to_html(read_atlas([entry(number, ratio=1.0 + number / 100) for number in range(40)]))
    assert "Point at a line to read its machine" in page
    (wide, narrow) = re.findall(r"<svg viewBox.*?</svg>", page)
    for figure in (wide, narrow):
        assert len(re.findall(r"<title>8 x CPU \d+: \d\.\d\d \(", figure)) == 40
        assert "8 x" not in re.sub(r"<title>.*?</title>", "", figure)


def test_texts_of_other_people_are_escaped_wherever_they_are_shown():
    evil = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
    texts = dict.fromkeys(("workload", "engine", "metric", "environment", "reference", "torch", "verdict"), evil)
    machine = ProcessorFacts(model=evil, architecture=evil, cpus=8, cores=4)
    changes = {evil: (evil, evil)}
    entries = [
        AtlasEntry(
            run=str(number),
            machine=machine.model_copy(update={"cpus": number}),
            effects=(EFFECT.model_copy(update={**texts, "changes": changes, "withheld": evil}),),
        )
        for number in (1, 2)
    ]
    page = to_html(replace(read_atlas(entries), unreadable=(evil,), signatures={evil: evil}))
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<img" not in page


@pytest.mark.parametrize(("machines", "limit_s"), [(50, 2.0), (1000, 20.0)])
def test_a_page_is_drawn_in_time(machines, limit_s):
    effects = [EFFECT.model_copy(update={"environment": name, "changes": {"a": ("b", name)}}) for name in "abcd"]
    entries = [entry(number).model_copy(update={"effects": tuple(effects)}) for number in range(machines)]
    start = time.process_time()
    page = to_html(read_atlas(entries))
    assert time.process_time() - start < limit_s
    assert page.count("<tr><th") == 6 + 4 * machines, "two headings, four environments"


def test_a_table_whose_effects_are_all_left_out_has_no_empty_figure():
    page = to_html(read_atlas([entry(1, flags=("unequal-work",)), entry(2, workload="mlp", work="x")]))
    assert len(re.findall("<figure>", page)) == 1
    assert "1 effect left out" in page
