"""Causes of a difference: the rules that name them, and the environments that confirm them."""

from __future__ import annotations

import html
import json
import random
import re
from dataclasses import replace

import pytest

from bench.early_and_late_steps import first_half_extra_s
from envmatrix.api.tuning.search import TuneResult
from envmatrix.report.explanation import ANSWERS, confirmation_lines, line_of, reasons_of
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from envmatrix.stats.attribution.causes import RULES as RULES_OF_REASONS
from envmatrix.stats.attribution.explanation import Wanted, confirm
from tests.committed import RESULTS
from tests.step_runs import STEPS, run_of, why
from tests.synthetic import make_environment

RULES = {
    "memory is returned to Linux and faulted in again": ({"minor_faults": 2000.0, "kernel": 5.0}, {}),
    "threads sleep between parallel regions": ({"voluntary_switches": 80.0, "blocked": 6.0}, {}),
    "threads spin while other programs need CPUs": (
        {"involuntary_switches": 40.0, "waiting": 6.0}, {"openmp": {"sleeps": False, "threads": 2}},
    ),
    "a CPU quota holds threads back": ({"waiting": 6.0, "throttled_s": 0.01}, {}),
    "fewer threads than CPUs": ({"user": 9.0}, {"openmp": {"threads": 1}}),
    "another compute kernel was chosen": ({"user": 9.0}, {"onednn": {"isa": "Intel AVX2"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_name_is_given_by_its_rule_alone(tmp_path, name):
    costs, evidence = RULES[name]

    def told(trial, thread):
        mine = (
            evidence if trial.environment == "other" else {"onednn": {"isa": "Intel AVX-512"}, "openmp": {"threads": 2}}
        )
        trial.document["evidence"].update(mine)
        return thread

    summary = run_of(tmp_path / "run", {"other": costs}, noise=0.004, change=told)
    assert [one.rule.name for one in why(summary, "other").findings] == [name]


@pytest.mark.parametrize(
    "costs",
    [
        {"minor_faults": 2000.0, "user": 5.0},  # more faults, but the time is elsewhere
        {"minor_faults": 100.0, "kernel": 5.0},  # faults cost a tenth of it
        {"voluntary_switches": 0.2, "blocked": 6.0},  # too few sleeps
        {"kernel": 5.0},
    ],
)
def test_no_name_is_given_where_the_numbers_do_not_meet_its_rule(tmp_path, costs):
    assert why(run_of(tmp_path / "run", {"other": costs}, noise=0.004), "other").findings == ()


def with_steps(slow_ms):
    """Return a change of trials: the first half of each trial's steps is slower by so many ms (environment -> ms)."""

    def told(trial, thread):
        chance = random.Random(f"{trial.trial}{trial.block}")
        slow = slow_ms.get(trial.environment, 0.0)
        steps = [27.5 + chance.gauss(0, 0.3) + (slow if n < STEPS // 2 else 0.0) for n in range(STEPS)]
        trial.document["metrics"]["first_half_extra_s"] = first_half_extra_s([round(1e6 * ms) for ms in steps])
        return thread

    return told


@pytest.mark.parametrize("slow", ["other", "baseline"])
def test_slower_first_steps_are_a_cause_and_are_told(tmp_path, slow):
    sides = ("other",) if slow == "other" else ("baseline", "control")
    costs = {"other": {}, **{side: {"user": 4.0} for side in sides}}
    change = with_steps(dict.fromkeys(sides, 8.0))
    found = why(run_of(tmp_path / "run", costs, noise=0.004, change=change), "other")
    assert [one.rule.name for one in found.findings] == ["first steps are slower (warm-up)"]
    extra = found.causes.cause("first_half_extra_s").change
    assert abs(extra.mean) == pytest.approx(4.0 / 1e3, rel=0.1)
    assert any(text.startswith("slower first half of the steps: adds ") for text in reasons_of(found))
    assert f"cause: in {slow}, first steps are slower (warm-up)" in reasons_of(found)


@pytest.mark.parametrize(
    ("costs", "slow"),
    [
        ({}, {}),  # two copies
        ({"user": 4.0}, {}),  # all steps are slower
        ({"user": 4.0}, {"other": 8.0, "baseline": 8.0, "control": 8.0}),  # so are the reference's first steps
        ({"user": 4.0}, {"other": 2.0}),  # a quarter of it
    ],
)
def test_warm_up_is_not_named_if_it_does_not_explain_half_of_the_difference(tmp_path, costs, slow):
    found = why(run_of(tmp_path / "run", {"other": costs}, noise=0.004, change=with_steps(slow)), "other")
    assert (found.findings if found else ()) == ()


@pytest.mark.parametrize(("gain", "confirmed"), [(-3.0, True), (-0.5, False), (2.0, False)])
def test_an_environment_that_changes_only_the_cause_confirms_it_or_not(tmp_path, gain, confirmed):
    levels = {"baseline": {"malloc": "glibc"}, "tuned": {"malloc": "glibc-tuned"}, "tcmalloc": {"malloc": "tcmalloc"}}
    changes = {"tcmalloc": {"minor_faults": -990.0, "kernel": -2.4}, "tuned": {"minor_faults": -990.0, "user": gain}}
    summary = run_of(tmp_path / "run", changes, noise=0.002, levels=levels)
    (finding,) = why(summary, "tcmalloc").findings
    assert (finding.confirmed, finding.by.arm.environment) == (confirmed, "tuned")
    said = reasons_of(why(summary, "tcmalloc"))[-1]
    assert said.startswith("cause: in baseline, memory is returned")
    assert (" (confirmed by tuned: changing only that saves " in said) is confirmed
    assert (" (not confirmed by tuned: changing only that costs " in said) is (gain > 0)
    of_runs = reasons_of(replace(why(summary, "tcmalloc"), per="run"))[-1]  # as for a program that prints no steps
    assert (" per step)" in said, " per run)" in of_runs, " per step" in of_runs) == (True, True, False)


MEMORY = "memory is returned to Linux and faulted in again"


def rule_of(name):
    return next(rule for rule in RULES_OF_REASONS if rule.name == name)


@pytest.mark.parametrize(
    ("tuned", "blocks", "answer"),
    [
        ({"minor_faults": -990.0, "kernel": -2.4}, 8, True),
        ({"minor_faults": -990.0, "kernel": -0.5}, 8, False),
        ({"minor_faults": -990.0, "kernel": -2.4}, 3, None),  # no verdict with so few blocks
        ({"kernel": -2.4, "minor_faults": 20.0}, 8, None),  # it did not change the cause
    ],
)
def test_a_cause_is_confirmed_by_an_environment_that_has_half_of_the_effect(tmp_path, tuned, blocks, answer):
    changes = {"tcmalloc": {"minor_faults": -990.0, "kernel": -2.4}, "tuned": tuned}
    summary = run_of(tmp_path / "run", changes, blocks=blocks, noise=0.002)
    arm = next(arm for arm in summary.plan.arms if arm.environment == "tcmalloc")
    wanted = Wanted(arm, "baseline", "step", rule_of(MEMORY), "tuned", ("malloc", "glibc-tuned"))
    (found,) = confirm(summary.analysis, summary.measured, [wanted])
    assert found.confirmed is answer
    assert bool(found.why) is (answer is None)
    title, mine, its = confirmation_lines(found)
    assert title.startswith(f"tcmalloc:cnn@local: {wanted.rule.name}: {ANSWERS[answer]}")
    assert re.fullmatch(r"  tcmalloc: -2\.\d \[-[\d.]+, -[\d.]+\] ms per step", mine)
    assert its.endswith("ms per step (it changes only this: malloc=glibc-tuned)")
    told = json.loads(json.dumps(found.to_json()))
    assert (told["confirmed"], told["by"]) == (answer, "tuned")
    assert told["by_s"]["mean"] == pytest.approx(found.other.whole.mean)


@pytest.mark.parametrize(
    ("name", "own", "slower", "levels"),
    [
        (MEMORY, {"malloc": "tcmalloc"}, False, [("malloc", "glibc-tuned")]),
        (MEMORY, {"malloc": "jemalloc"}, True, []),
        ("threads sleep between parallel regions", {"threads": "one"}, True, [("wait", "passive")]),
        ("threads sleep between parallel regions", {}, False, [("wait", "active")]),
        ("threads sleep between parallel regions", {"wait": "spin-0"}, True, [("wait", "spin-0"), ("wait", "passive")]),
        ("threads spin while other programs need CPUs", {}, False, [("wait", "passive")]),
        ("fewer threads than CPUs", {"threads": "one", "malloc": "tcmalloc"}, True, [("threads", "one")]),
        ("fewer threads than CPUs", {}, False, [("threads", "logical")]),
        ("another compute kernel was chosen", {"isa": "onednn-avx2"}, True, [("isa", "onednn-avx2")]),
        ("a CPU quota holds threads back", {"cpu-quota": "1"}, True, [("cpu-quota", "1")]),
    ],
)  # fmt: skip
def test_a_cause_is_removed_or_added_by_the_levels_of_its_rule(name, own, slower, levels):
    first = {"malloc": "glibc", "wait": "default", "threads": "default"}
    sides = make_environment("other", {**first, **own}), make_environment("baseline", first)
    assert list(rule_of(name).interventions(*sides, slower=slower)) == levels
    other_allocator = make_environment("baseline", {**first, "malloc": "jemalloc"})
    malloc = [
        level for level in rule_of(name).interventions(sides[0], other_allocator, slower=slower) if "malloc" in level
    ]
    assert malloc == [], "from another allocator, glibc-tuned changes more than this cause"


#: How many ms of user time a step takes longer, on different days.


def test_the_page_has_the_answer_that_a_run_with_both_environments_gives():
    summary = summarise(RunFolder(RESULTS / "reference-default"))
    (arm,) = (arm for arm in summary.plan.arms if arm.environment == "tcmalloc")
    wanted = Wanted(arm, "baseline", "step", rule_of(MEMORY), "glibc-tuned", ("malloc", "glibc-tuned"))
    (found,) = confirm(summary.analysis, summary.measured, [wanted])
    assert found.confirmed
    assert "\n".join(confirmation_lines(found)) in (RESULTS.parent / "docs/why.md").read_text()


def test_the_answer_of_a_search_has_the_parts_and_the_cause_of_its_gain():
    search = TuneResult(RESULTS / "reference-tune")
    assert html.unescape(search._repr_html_()).startswith(f"<pre>{search.answer.headline}\n")
    found = search.answer.why
    assert found.parts.part("kernel").change.high < 0
    assert [one.rule.name for one in found.findings] == [MEMORY]
    lines = "\n     ".join((f"why: {line_of(found)}", *reasons_of(found)))
    assert f"\n{lines}\n" in str(search)
    assert f"\n{lines}\n" in (RESULTS.parent / "docs/tune.md").read_text()


def test_the_readme_says_why_mimalloc_is_faster_as_its_run_does():
    found = why(summarise(RunFolder(RESULTS / "reference-steady")), "mimalloc")
    shown = (RESULTS.parent / "README.md").read_text()
    for text in (line_of(found), *reasons_of(found)):
        assert f"\n    {text}\n" in shown
