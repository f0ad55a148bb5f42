"""Every verdict, warning and error is explained: in one line in reports, and in a section of the page."""

from __future__ import annotations

import io
import re
from typing import get_args

import pytest
from rich.console import Console

from envmatrix.__main__ import main
from envmatrix.errors import EngineGoneError, EnvmatrixError, StoreError
from envmatrix.matrix.parse import MatrixError
from envmatrix.report.formats.html_file import link_words, to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.warning import WarningKind
from envmatrix.stats.comparisons.replication import Answer
from envmatrix.stats.comparisons.result import Status
from envmatrix.stats.effects import Flag, Verdict
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import Metric, format_number
from envmatrix.system import resource_paths
from envmatrix.system.plugins import ExtensionError
from envmatrix.system.verdict_and_warning_terms import (
    ERRORS,
    GLOSSARY,
    OUTCOME_MARKS,
    PAGE,
    TOPICS,
    VERDICTS,
    WARNINGS,
    term_lookup_key,
    terms,
    topic_section,
)
from tests.synthetic import Machine, make_plan, make_run, make_trials

TEXT = resource_paths.documentation_pages()[PAGE].read_text(encoding="utf-8")


def test_every_verdict_mark_and_warning_of_the_code_is_a_word_of_the_table():
    said = {word.replace(" ", "-") for kind in (Verdict, Status, Answer) for word in get_args(kind)}
    others = {Metric("accuracy", "accuracy", "%", "higher", format_number).said(word) for word in ("faster", "slower")}
    assert said | others == set(VERDICTS)
    assert len(others - said) == 2
    assert [kind.value for kind in WarningKind] == list(WARNINGS)
    flags = {value for name, value in vars(Flag).items() if name.isupper()}
    assert flags - set(WARNINGS) == set(OUTCOME_MARKS)


def errors(kind: type[EnvmatrixError]) -> set[type[EnvmatrixError]]:
    return {kind, *(one for below in kind.__subclasses__() for one in errors(below))}


def test_every_error_names_a_word_or_a_page_or_says_it_all_itself():
    named = {kind.topic for kind in errors(EnvmatrixError)}
    assert {"results-folder", "engine-error", "matrix", ExtensionError.topic} <= named
    assert named - {"", *resource_paths.documentation_pages(), *TOPICS} == set()
    assert set(ERRORS) - named == {"bad-input", "system-refused"} - named


def test_the_page_has_a_section_for_every_word_and_for_no_other_which_begins_with_its_line():
    assert re.findall(r"^### (.*)$", TEXT, re.MULTILINE) == list(TOPICS)
    for word, line in TOPICS.items():
        heading, _, first, *more = topic_section(TEXT, word).split("\n")
        assert (heading, first) == (f"### {word}", line)
        assert "".join(more).strip(), f"{word}: what to do, or why"


@pytest.mark.parametrize("word", ["short-run", "control-off-1.0", "engine-error", "system-refused"])
def test_docs_prints_the_section_of_a_word_and_nothing_else(word, capsys):
    assert main(["docs", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"### {word}\n\n{TOPICS[word]}\n")
    assert out.count("### ") == 1


def test_a_word_that_is_also_a_page_prints_the_page(capsys):
    assert main(["docs", "undecided"]) == 0
    assert capsys.readouterr().out.startswith("# Undecided")


TERMS = terms(resource_paths.documentation_pages()[GLOSSARY].read_text(encoding="utf-8"))


@pytest.mark.parametrize("term", sorted(set(TERMS) - set(TOPICS) - set(resource_paths.documentation_pages())))
def test_docs_prints_the_line_of_every_term_and_of_its_other_names(term, capsys):
    assert main(["docs", *term.split()]) == 0
    out = capsys.readouterr().out
    if term.lower() not in resource_paths.documentation_pages() and term_lookup_key(term) not in map(
        term_lookup_key, TOPICS
    ):
        assert " ".join(out.split()) == " ".join(TERMS[term].split())


def test_no_two_terms_have_one_name():
    text = resource_paths.documentation_pages()[GLOSSARY].read_text(encoding="utf-8")
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    others = [name for line in re.findall(r"\*Also: (.*)\.\*", text) for name in line.split(", ")]
    assert len(headings) > 60
    assert [
        name
        for name in TERMS
        if sum(term_lookup_key(name) == term_lookup_key(other) for other in [*headings, *others]) > 1
    ] == []
    assert {"block", "trial", "control", "environment", "level", "factor", "check", "evidence"} <= set(headings)
    assert {"interleaving", "interval", "CPU contention", "steady state", "trial run", "interim analysis"} <= set(
        headings
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Blocks", "block: "),
        ("Steady-State-Run", "steady state: "),
        ("short run", "### short-run"),
        ("min_blocks", "matrix.yaml"),
    ],
)
def test_docs_knows_a_term_in_other_spellings_and_the_keys_of_a_matrix(asked, found, capsys):
    assert main(["docs", asked]) == 0
    assert found in capsys.readouterr().out


def test_docs_says_what_lists_all_if_nothing_is_near(capsys):
    assert main(["docs", "qqqqqq"]) == 2
    assert "`envmatrix docs` lists all" in capsys.readouterr().err


def test_docs_lists_the_words_and_helps_with_a_misspelt_one(capsys):
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    assert [word for word in TOPICS if f"  {word}\n" not in listed] == []
    assert main(["docs", "shortrun"]) == 2
    assert "did you mean 'short-run'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "topic"), [(StoreError("x"), "results-folder"), (EngineGoneError("x"), "engine-gone"),
                         (MatrixError([]), "matrix"), (EnvmatrixError("x"), ""),
     (OSError(28, "full"), "system-refused")],
)  # fmt: skip
def test_the_terminal_says_where_an_error_is_explained(monkeypatch, capsys, error, topic):
    def broken(_arguments):
        raise error

    monkeypatch.setattr("envmatrix.cli.command_table.run_command", broken)
    main(["docs"])
    pointer = f"(more: envmatrix docs {topic})"
    assert (pointer in capsys.readouterr().err) is bool(topic)


@pytest.fixture(scope="module")
def summary():
    plan = make_plan(("fast", "odd"))
    trials = make_trials(plan, Machine({"fast": 1.4}, noise=0.05, loss={"odd": 0.9}), 8)
    return summarise_measurements(make_run(plan), fold_trials(plan, trials))


def test_a_report_names_the_words_that_it_uses_and_where_they_are_explained(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200, force_terminal=False))
    words = re.search(r"what a word means: envmatrix docs WORD \((.*)\)", out.getvalue())[1].split(", ")
    assert {"faster", "undecided", "unequal-work", "stand-in-data", "short-run"} <= set(words)
    assert "slower" not in words
    assert f"`envmatrix docs WORD` explains {', '.join(words)}." in to_markdown(summary)


def test_every_word_of_the_page_links_to_what_it_means_and_every_link_has_its_end(summary):
    page = to_html(summary)
    ends = re.findall(r'<dt id="word-([^"]*)">', page)
    assert set(re.findall(r'href="#word-([^"]*)"', page)) == set(ends)
    assert '<td class="verdict faster">▲ <a class="word" href="#word-faster">faster</a></td>' in page
    assert '<b><a class="word" href="#word-short-run">short-run</a></b>' in page
    assert TOPICS["unequal-work"] in page


def test_a_text_of_a_user_stays_text_beside_a_link():
    assert str(link_words("<b>, faster, x & y", ("faster",))) == (
        '&lt;b&gt;, <a class="word" href="#word-faster">faster</a>, x &amp; y'
    )
