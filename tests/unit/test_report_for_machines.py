"""Output for dashboards and CI servers, read back as they read it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from envmatrix.report.formats.junit import to_junit
from envmatrix.report.formats.openmetrics import to_openmetrics, unix_seconds
from envmatrix.report.report_data import summarise_measurements
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import HOST, Machine, make_plan, make_run, make_trials

#: A name with characters that would end a label, a line and an attribute.
ODD = 'odd"\\<&'
#: Elements that Jenkins' schema (junit-10.xsd) allows in each element, and those it requires.
CHILDREN = {
    "testsuites": {"testsuite"}, "testsuite": {"properties", "testcase", "system-out"}, "properties": {"property"},
    "testcase": {"skipped", "error", "failure", "system-out"},
}  # fmt: skip
REQUIRED = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}, "property": {"name", "value"}}


@pytest.fixture(scope="module")
def summary():
    plan = make_plan(("fast", ODD, "broken", "absent", "other-work"))
    machine = Machine({"fast": 1.4}, noise=0.02, loss={"other-work": 0.9}, outcome={"broken": "failed"})
    trials = [trial for trial in make_trials(plan, machine, 8) if trial.environment != "absent"]
    skipped = {arm.name: "no such library" for arm in plan.arms if arm.environment == "absent"}
    run = make_run(plan, host=replace(HOST, name='a"host'), skipped=skipped)
    return summarise_measurements(run, fold_trials(plan, trials))


def samples(summary):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    found = list(parser.text_string_to_metric_families(to_openmetrics(summary)))
    assert {family.type for family in found} == {"gauge"}
    assert all(family.documentation for family in found)
    return {family.name: family.samples for family in found}


def test_a_dashboard_gets_every_environments_speed_up_interval_and_verdict(summary):
    found = samples(summary)
    effects = {row.arm.environment: row.effect for row in summary.groups[0].all_rows if row.effect}
    for end, name in (("ratio", "speed_up"), ("low", "speed_up_low"), ("high", "speed_up_high")):
        told = {sample.labels["environment"]: sample.value for sample in found[f"envmatrix_{name}_ratio"]}
        known = {name: getattr(effect, end) for name, effect in effects.items()}
        assert told == {name: value for name, value in known.items() if value is not None}
    verdicts = {sample.labels["environment"]: sample.labels["verdict"] for sample in found["envmatrix_verdict"]}
    assert (verdicts["fast"], verdicts["broken"]) == ("faster", "undecided")
    assert ODD in verdicts


def test_a_dashboard_gets_outcomes_warnings_and_when_it_was(summary):
    found = samples(summary)
    outcomes = {
        (sample.labels["environment"], sample.labels["outcome"]): sample.value for sample in found["envmatrix_trials"]
    }
    assert outcomes["broken", "failed"] == outcomes["fast", "ok"] == 8
    kinds = {sample.labels["warning"] for sample in found["envmatrix_warning"]}
    assert {"failed-trials", "skipped-environment", "unequal-work"} <= kinds
    (made,) = found["envmatrix_run_created_seconds"]
    assert (made.value, made.labels["host"]) == (1767225600.0, 'a"host')


@pytest.mark.parametrize("written", ["", "yesterday", "9" * 400])
def test_what_is_no_time_is_left_out(written):
    assert unix_seconds(written) is None


def test_a_ci_server_gets_a_test_an_environment_as_its_schema_wants_it(summary):
    root = ET.fromstring(to_junit(summary))
    assert root.tag == "testsuites"
    for element in root.iter():
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
        assert REQUIRED.get(element.tag, set()) <= set(element.attrib)
    (suite,) = root
    counted = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": 6, "failures": 1, "errors": 1, "skipped": 1}


def test_what_broke_fails_and_what_is_only_slower_passes(summary):
    cases = {case.get("name"): case for case in ET.fromstring(to_junit(summary)).iter("testcase")}
    assert set(cases) == {"fast", ODD, "broken", "absent", "other-work", "control"}
    assert cases["fast"].find("system-out").text.startswith("faster: 1.4")
    assert [child.tag for child in cases["fast"]] == ["system-out"]
    assert cases["broken"].find("error").get("type") == "nothing-measured"
    assert cases["absent"].find("skipped").get("message") == "no such library"
    assert cases["other-work"].find("failure").get("type") == "unequal-work"


def test_a_trial_that_failed_fails_the_test_of_its_environment_even_if_the_reference_fails_as_often():
    plan = make_plan(("fast",))
    trials = [
        replace(trial, outcome="failed", document=None) if trial.block == 3 else trial
        for trial in make_trials(plan, Machine({}), 12)
    ]
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    (fast,) = (case for case in ET.fromstring(to_junit(summary)).iter("testcase") if case.get("name") == "fast")
    assert fast.find("failure").get("message").startswith("1 of 12 trials broke")


def test_too_few_blocks_are_a_test_that_was_skipped():
    plan = make_plan(("fast",))
    few = summarise_measurements(make_run(plan), fold_trials(plan, make_trials(plan, Machine({}), 3)))
    cases = ET.fromstring(to_junit(few)).iter("testcase")
    assert {case.find("skipped").get("type") for case in cases} == {"too-few-blocks"}
