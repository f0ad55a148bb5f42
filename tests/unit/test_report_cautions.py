"""Warnings about the machine: each appears if and only if it should."""

from __future__ import annotations

import ast
import inspect
import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import linregress

from envmatrix.evidence import checks
from envmatrix.report import machine_warnings, warnings
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.warning import WarningKind
from envmatrix.results import NodeCheck
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.trial_text_counts import ArmFacts
from tests.synthetic import HOST, Machine, make_environment, make_plan, make_run, make_trials, write_run

PLAN = make_plan(("fast",))


#: First words that a remedy may have: an action.
ACTIONS = {
    "add", "ask", "check", "compare", "end", "find", "fix", "install", "keep", "measure", "move", "read", "repeat",
    "restore", "run", "see", "set", "start", "use", "write",
}  # fmt: skip


def remedies(module):
    """Yield the first text of each remedy in a module's source, whether whole, in parts or conditional."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        last: list[ast.expr] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check":
            last = node.args[2:]
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            last = node.value.elts[2:]
        for text in ast.walk(last[0]) if last else ():
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.value
                break


def test_what_to_do_is_something_to_do():
    found = [text for module in (warnings, machine_warnings) for text in remedies(module)]
    assert len(found) > 15
    assert [text for text in found if not text.startswith("`envmatrix ") and text.split()[0] not in ACTIONS] == []


def kinds_after(change=lambda trial: trial, **run):
    made = make_trials(PLAN, Machine({}, noise=0.01, stand_in=False), 10)
    trials = [change(replace(trial, started=1.7e9 + 100 * trial.block)) for trial in made]
    summary = summarise_measurements(make_run(PLAN, **run), fold_trials(PLAN, trials))
    assert all(caution.text and caution.remedy for caution in summary.cautions)
    return {caution.kind for caution in summary.cautions}


def of_system(name, value):
    def change(trial):
        trial.document["evidence"]["system"][name] = value(trial) if callable(value) else value
        return trial

    return change


def slower_every_block(trial):
    trial.document["metrics"]["samples_per_s"] *= math.exp(-0.01 * trial.block)
    return trial


def test_a_quiet_run_has_no_warning():
    assert kinds_after() == set()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (slower_every_block, WarningKind.DRIFT),
        (of_system("steal_ticks", 60), WarningKind.STEAL),
        (of_system("load_1m", 9.0), WarningKind.OTHER_LOAD),
        (of_system("mhz", lambda trial: 3000.0 - 400 * (trial.block % 2)), WarningKind.FREQUENCY),
        (lambda trial: replace(trial, node_checks=(NodeCheck(busy=0.37, others=("stress",)),)), WarningKind.OTHER_LOAD),
        (lambda trial: replace(trial, node=f"n{trial.position}"), WarningKind.MIXED_HOSTS),
    ],
)
def test_what_the_machine_did_is_told(change, kind):
    assert kinds_after(change) == {kind}


def test_stolen_ticks_are_of_all_cpus_and_of_the_timed_part_alone():
    host = replace(HOST, cpus=tuple(range(64)))
    assert kinds_after(of_system("steal_ticks", 60), host=host) == set()  # 0.6 s of 64 CPUs for 4 s: 0.2 %
    assert kinds_after(of_system("steal_ticks", 600), host=host) == {WarningKind.STEAL}
    measured = fold_trials(
        PLAN, [of_system("steal_ticks", 80)(t) for t in make_trials(PLAN, Machine({}, noise=0.0), 10)]
    )
    told = summarise_measurements(make_run(PLAN), measured).cautions
    assert "for 10.0% of the time" in next(one.text for one in told if one.kind == WarningKind.STEAL)


def test_blocks_that_others_disturbed_are_counted_node_by_node():
    """Guards against "4 of 4 blocks" for one node when the four blocks ran on two."""

    def checked(trial):
        node, busy = ("n1", 0.4) if trial.block % 2 else ("n2", 0.3 if trial.block == 4 else 0.0)
        return replace(trial, node=node, node_checks=(NodeCheck(busy=busy),))

    trials = [checked(trial) for trial in make_trials(PLAN, Machine({}, noise=0.0), 10)]
    both = [replace(trial, node="n1,n2", node_checks=(NodeCheck(busy=0.1), NodeCheck(busy=0.2)))
            for trial in make_trials(PLAN, Machine({}, noise=0.0), 11) if trial.block == 10]  # fmt: skip
    cautions = summarise_measurements(make_run(PLAN), fold_trials(PLAN, [*trials, *both])).cautions
    (told,) = (one for one in cautions if one.kind == WarningKind.OTHER_LOAD)
    assert told.subject == "n2, n1"
    first, second = told.sentence.split("; n1: ")
    assert first.startswith("n2: others used its CPUs before 2 of the 6 blocks that ran on it; most, 30% of all, ")
    assert second.startswith("others used its CPUs before 6 of the 6 blocks that ran on it; most, 40% of all, ")


def test_blocks_on_different_machines_are_no_reason_to_warn():
    assert kinds_after(lambda trial: replace(trial, node=f"n{trial.block}")) == set()


@pytest.mark.parametrize(
    ("library", "unproven", "claimed", "is_no_op"),
    [
        ("libc", (), "malloc", True),
        ("libtcmalloc", (), "malloc", False),
        ("libc", ("its threads could not be seen",), "malloc", False),
        ("libc", (), "variables.LOADER_WORKERS", False),
    ],
)
def test_a_level_that_shows_what_the_reference_shows_is_told_as_no_op(library, unproven, claimed, is_no_op):
    def show(trial):
        seen = library if trial.environment == "fast" else "libc"
        trial.document["evidence"] = {"malloc": {"library": seen, "path": f"/{trial.trial}"}}
        return replace(trial, unproven=unproven)

    environments = {name: make_environment(name, {"malloc": name}, variables={}) for name in ("baseline", "fast")}
    environments["fast"] = replace(environments["fast"], claims=checks.parse_claims({claimed: ("*",)}))
    trials = [show(trial) for trial in make_trials(PLAN, Machine({}, noise=0.01), 10)]
    summary = summarise_measurements(make_run(PLAN, environments=environments), fold_trials(PLAN, trials))
    flags = {effect.environment: effect.flags for effect in summary.analysis.primary_effects()}
    assert ("no-op-here" in flags["fast"]) is is_no_op
    assert "no-op-here" not in flags.get("control", ())


def test_levels_that_claim_nothing_are_told():
    environments = {
        "baseline": make_environment("baseline", {"malloc": "glibc"}, variables={}),
        "fast": make_environment("fast", {"malloc": "tc"}, variables={}),
    }
    assert kinds_after(environments=environments) == {WarningKind.UNVERIFIED}
    environments["fast"] = replace(environments["fast"], claims=checks.parse_claims({"malloc": ("libtcmalloc",)}))
    assert kinds_after(environments=environments) == set()


def test_a_trend_and_its_error_are_those_of_linear_regression():
    values = np.random.default_rng(2).normal(0, 0.1, 11) + 0.02 * np.arange(11)
    line = linregress(np.arange(11), values)
    assert machine_warnings.slope_and_standard_error(values) == pytest.approx((line.slope, line.stderr), rel=1e-12)


def test_a_report_is_made_without_what_takes_longer_to_import_than_all_else(tmp_path):
    folder = write_run(tmp_path / "run", PLAN, Machine({"fast": 1.1}), 6).path
    code = "import sys; from envmatrix.__main__ import main; main(sys.argv[1:]); sys.exit('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "report", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, "fast" in done.stdout) == (0, True), done.stderr


def test_one_cause_is_one_warning_with_a_count_whichever_environments_and_trials_have_it():
    facts = {name: ArmFacts() for name in ("baseline", "pytorch-ci", "control")}
    for fact in facts.values():
        fact.outcomes["ok"] = 4
        fact.unproven["too short to be looked at"] = 3
    facts["pytorch-ci"].unproven["fewer than 2 threads were seen"] = 4
    (check,) = (check for check in machine_warnings.MACHINE_CHECKS if check.kind == WarningKind.UNPROVEN)
    found = list(check.warnings(None, SimpleNamespace(facts=facts), None))
    assert [(one.subject, one.text) for one in found] == [
        ("baseline, pytorch-ci, control", "too short to be looked at (9 of 12 trials)"),
        ("pytorch-ci", "fewer than 2 threads were seen (4 of 4 trials)"),
    ]
