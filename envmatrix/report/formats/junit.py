"""JUnit XML for CI servers (Jenkins' junit-10.xsd, also GitLab): one suite per workload and engine."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from envmatrix.report.formatting import flags_text, format_interval, format_ratio
from envmatrix.report.group import Group, Row
from envmatrix.report.report_data import Summary
from envmatrix.stats.comparisons.result import Comparison
from envmatrix.stats.effects import DISQUALIFYING_FLAGS
from envmatrix.stats.quality.failures import BROKEN_OUTCOMES
from envmatrix.system.printable import printable_line, printable_text

_MAX_TEXT_LENGTH = 20_000


def to_junit(summary: Summary) -> str:
    """Return the document: one test per compared environment.

    A test is an error if all its trials failed. It is a failure if some failed or a flag disqualifies it, and skipped
    if it was skipped or has too few blocks. *Slower* fails no test; use ``envmatrix compare --fail-slower`` as a gate.
    """
    root = ET.Element("testsuites", name=_text(f"envmatrix {summary.plan.design}"))
    for group in summary.groups:
        root.append(_suite(summary, group))
    return _document(root)


def _text(text: object) -> str:
    return printable_text(text, _MAX_TEXT_LENGTH).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def _suite(summary: Summary, group: Group) -> ET.Element:
    cases = [_case(summary, group, row) for row in group.all_rows if row.arm.reference]
    suite = _new_suite(f"{group.workload}@{group.engine}", cases)
    suite.set("timestamp", _text(summary.run.created[:19]))
    suite.set("hostname", _text(summary.run.host.name or "unknown"))
    properties = ET.SubElement(suite, "properties")
    for name, value in (("run", summary.run.name), ("seed", summary.plan.seed), ("metric", group.metric.label)):
        ET.SubElement(properties, "property", name=name, value=_text(value))
    suite.extend(cases)
    warnings = [f"{item.kind.value}: {item.sentence}\n  -> {item.remedy}" for item in summary.cautions]
    ET.SubElement(suite, "system-out").text = _text("\n".join([group.headline, *group.sentences, *warnings]))
    return suite


def _new_suite(name: str, cases: Sequence[ET.Element]) -> ET.Element:
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in tags.items()}
    return ET.Element("testsuite", {"name": _text(name), "tests": str(len(cases)), **counts})


def _case(summary: Summary, group: Group, row: Row) -> ET.Element:
    arm, effect = row.arm, row.effect
    case = ET.Element("testcase", classname=_text(f"{group.workload}@{group.engine}"), name=_text(arm.environment))
    facts = summary.measured.facts[arm.name]
    broken = sum(facts.outcomes[name] for name in BROKEN_OUTCOMES)
    barred = sorted(DISQUALIFYING_FLAGS.intersection(effect.flags)) if effect else []
    reasons = "; ".join(facts.reasons)
    if row.skipped:
        _add_result(case, "skipped", "skipped-environment", row.skipped)
    elif not facts.outcomes["ok"]:
        _add_result(case, "error", "nothing-measured", reasons or "no trial of it was run")
    elif broken or barred:
        broken_texts = [f"{broken} of {broken + facts.outcomes['ok']} trials broke"] if broken else []
        kind = barred[0] if barred else "failed-trials"
        _add_result(
            case, "failure", kind, "; ".join([*broken_texts, *barred, *(effect.notes if effect else ())]), reasons
        )
    elif effect is None or effect.low is None:
        _add_result(case, "skipped", "too-few-blocks", format_interval(effect) if effect else "it is not compared")
    if effect:
        verdict_text, against = group.metric.said(effect.verdict), group.metric.as_fast_as(effect.reference)
        words = f"{verdict_text}: {format_ratio(effect.ratio)} times {against}, {format_interval(effect)}"
        note = flags_text(effect)
        ET.SubElement(case, "system-out").text = _text(f"{words}; {note}" if note else words)
    return case


def _add_result(case: ET.Element, tag: str, kind: str, message: str, text: str = "") -> None:
    ET.SubElement(case, tag, type=kind, message=_text(printable_line(message, 500))).text = _text(text) or None


def comparison_to_junit(found: Comparison, *, fail_undecided: bool = False) -> str:
    """Return a gate's results as tests: slower and unequal work fail, 'cannot say' only with ``fail_undecided``."""
    cases = []
    for item in found.items:
        case = ET.Element("testcase", classname="envmatrix.compare", name=_text(item.name))
        tag = "skipped" if item.status == "cannot say" and not fail_undecided else "failure"
        if item.status == "not slower":
            ET.SubElement(case, "system-out").text = _text(item.line())
        else:
            _add_result(case, tag, item.status.replace(" ", "-"), item.line())
        cases.append(case)
    suite = _new_suite("envmatrix compare", cases)
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _text("\n".join(found.lines()))
    root = ET.Element("testsuites", name="envmatrix compare")
    root.append(suite)
    return _document(root)


def _document(root: ET.Element) -> str:
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
