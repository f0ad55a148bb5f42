"""Explanations of effects: parts of a step that add up, their causes, and reasons that need a rule."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from bench.cold import first_half_extra_s
from envmatrix.api import answers
from envmatrix.api.tunes import TuneResult
from envmatrix.errors import InputError
from envmatrix.evidence.record import StepThread, read_record
from envmatrix.report.explanation import ANSWERS, confirmation_lines, line_of, reasons_of, tree_of
from envmatrix.report.exports import effects_csv, trials_csv
from envmatrix.report.html_file import to_html
from envmatrix.report.json_file import summary_to_json
from envmatrix.report.markdown import to_markdown
from envmatrix.report.summary import summarise
from envmatrix.results import RunFolder
from envmatrix.stats.confirmation import Wanted, confirm
from envmatrix.stats.explanation import to_json
from envmatrix.stats.reasons import RULES as RULES_OF_REASONS
from envmatrix.stats.step_account import PARTS
from tests.committed import RESULTS
from tests.synthetic import MATRIX_TEXT, Machine, make_environment, make_plan, make_run, make_trials
from tests.unit.test_report_attributed import printed

STEPS = 20
#: Milliseconds of each part, and events, per step.
USUAL = {"user": 20.0, "kernel": 5.0, "waiting": 0.5, "blocked": 2.0, "minor_faults": 1000.0, "voluntary_switches": 1.0}
FAULT_MS = 0.0025


def thread_of(parts, **over):
    """Return a record's ``step_thread``; ``parts`` are milliseconds and events per step."""
    nanoseconds = {name: round(parts[name] * 1e6 * STEPS) for name in PARTS}
    events = {name: round(parts.get(name, 0.0) * STEPS) for name in ("minor_faults", "voluntary_switches")}
    return {
        "wall_ns": sum(nanoseconds.values()), "cpu_ns": nanoseconds["user"] + nanoseconds["kernel"],
        "user_ns": nanoseconds["user"], "system_ns": nanoseconds["kernel"], "waited_ns": nanoseconds["waiting"],
        **events, "major_faults": 0, "involuntary_switches": round(parts.get("involuntary_switches", 0.0) * STEPS),
        "others": {"busy": 1, "ended": 0, "cpu_ns": 10**9, "waited_ns": 0}, "steps": STEPS,
        "prices": {"minor_fault_ns": FAULT_MS * 1e6, "wake_up_ns": 5000.0, "memory_call_ns": 2000.0}, **over,
    }  # fmt: skip


def run_of(
    path,
    changes,
    blocks=8,
    noise=0.02,
    levels=None,
    change=lambda _, thread: thread,
    profile=lambda _: None,
    seed=7,
    **more,
):
    """Write and read a run in which each environment changes parts of a step by the milliseconds in ``changes``."""
    plan = make_plan(tuple(name for name in changes if name not in ("baseline", "control")))
    environments = {
        arm.runs: make_environment(arm.runs, (levels or {}).get(arm.runs), variables={}) for arm in plan.arms
    }
    folder = RunFolder(path)
    folder.create(make_run(plan, path.name, environments=environments), MATRIX_TEXT)
    with patch("os.fsync"):  # synthetic data need not survive a crash
        for trial in trials_of(plan, changes, blocks, noise, change, profile, more, seed):
            folder.append(trial)
    return summarise(folder)


def trials_of(plan, changes, blocks, noise, change, profile, more, seed=7):
    chance = random.Random(seed)
    for trial in make_trials(plan, Machine({}), blocks):
        of_environment = changes.get(trial.environment, {})
        parts = {
            name: (USUAL.get(name, 0.0) + of_environment.get(name, 0.0)) * (1 + chance.gauss(0, noise))
            for name in {**USUAL, **of_environment}
        }
        thread = change(trial, thread_of(parts))
        seconds = sum(parts[name] for name in PARTS) / 1000 * STEPS
        document = {**trial.document, "step_thread": thread, "profile": profile(trial)}
        document["metrics"] = {
            **document["metrics"], "training_s": seconds, "samples_per_s": 64 * STEPS / seconds,
            "throttled_s": parts.get("throttled_s", 0.0), **more,
        }  # fmt: skip
        yield replace(trial, document=document)


def why(summary, environment):
    return next(row.why for group in summary.groups for row in group.all_rows if row.arm.environment == environment)


def ms(interval):
    return tuple(round(1e3 * end, 3) for end in (interval.low, interval.mean, interval.high))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("added", [-1.5, 4.0])
def test_a_cost_is_found_in_its_part_and_in_no_other(tmp_path, part, added):
    usual = {**USUAL, "blocked": 8.0, "waiting": 8.0}
    base = {name: usual[name] - USUAL[name] for name in PARTS}
    changes = {"same": base, "other": {**base, part: base[part] + added}}
    summary = run_of(tmp_path / "run", {**changes, "baseline": base, "control": base}, noise=0.004)
    found = why(summary, "other")
    assert ms(found.parts.whole)[0] < added < ms(found.parts.whole)[2]
    for one in found.parts.parts:
        truth = added if one.name == part else 0.0
        assert ms(one.change)[0] <= truth <= ms(one.change)[2]
        assert one.change.is_sure == (one.name == part)
    share = found.parts.part(part).share
    assert share.low <= 1.0 <= share.high
    assert why(summary, "same") is None


def test_parts_add_up_to_the_whole_in_every_block_and_in_the_mean(tmp_path):
    found = why(run_of(tmp_path / "run", {"other": {"kernel": -2.0, "blocked": 6.0}}), "other").parts
    whole = found.of("whole")
    assert np.allclose(sum(found.of(name) for name in PARTS), whole, rtol=1e-12)
    assert sum(part.change.mean for part in found.parts) == pytest.approx(found.whole.mean)
    assert found.blocks == 8
    before, after = found.means("whole")
    assert after - before == pytest.approx(found.whole.mean)


def test_the_whole_is_the_difference_of_the_step_times_of_the_table(tmp_path):
    summary = run_of(tmp_path / "run", {"other": {"user": 5.0}})
    rates = summary.measured.table["samples_per_s"]
    step = dict(zip(summary.measured.arms, 64 / rates, strict=True))
    reference = (step["baseline:cnn@local"] + step["control:cnn@local"]) / 2
    assert why(summary, "other").parts.of("whole") == pytest.approx(step["other:cnn@local"] - reference)


def test_faults_are_priced_and_what_they_leave_is_told(tmp_path):
    more = {"minor_faults": 2000.0, "kernel": 2000 * FAULT_MS + 3.0}
    found = why(run_of(tmp_path / "run", {"other": more}, noise=0.004), "other")
    faults = found.causes.cause("minor_faults")
    assert faults.price_s == pytest.approx(FAULT_MS / 1e3)
    assert faults.time.low <= 2000 * FAULT_MS / 1e3 <= faults.time.high
    left = found.causes.unexplained["kernel"]
    assert left.low <= 3.0 / 1e3 <= left.high
    kernel = found.parts.part("kernel").change.mean
    assert faults.time.mean + left.mean == pytest.approx(kernel)


RULES = {
    "memory returned to the kernel and faulted in again": ({"minor_faults": 2000.0, "kernel": 5.0}, {}),
    "threads sleep between parallel regions": ({"voluntary_switches": 80.0, "blocked": 6.0}, {}),
    "threads spin while other programs need CPUs": (
        {"involuntary_switches": 40.0, "waiting": 6.0}, {"openmp": {"sleeps": False, "threads": 2}},
    ),
    "a CPU quota holds threads back": ({"waiting": 6.0, "throttled_s": 0.01}, {}),
    "fewer threads than CPUs": ({"user": 9.0}, {"openmp": {"threads": 1}}),
    "another kernel was chosen": ({"user": 9.0}, {"onednn": {"isa": "Intel AVX2"}}),
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


@pytest.mark.parametrize(("gain", "confirmed"), [(-3.0, True), (-0.5, False)])
def test_an_environment_that_changes_only_the_cause_confirms_it_or_not(tmp_path, gain, confirmed):
    levels = {"baseline": {"malloc": "glibc"}, "tuned": {"malloc": "glibc-tuned"}, "tcmalloc": {"malloc": "tcmalloc"}}
    changes = {"tcmalloc": {"minor_faults": -990.0, "kernel": -2.4}, "tuned": {"minor_faults": -990.0, "user": gain}}
    summary = run_of(tmp_path / "run", changes, noise=0.002, levels=levels)
    (finding,) = why(summary, "tcmalloc").findings
    assert (finding.confirmed, finding.by.arm.environment) == (confirmed, "tuned")
    said = reasons_of(why(summary, "tcmalloc"))[-1]
    assert said.startswith("cause: in baseline, memory returned")
    assert ("; confirmed by tuned" in said) is confirmed


def test_of_two_copies_nothing_is_explained_and_it_is_said_why(tmp_path):
    run_of(tmp_path / "run", {"other": {}}, noise=0.05)
    found, silent = answers.explain(tmp_path / "run")
    assert found == []
    assert silent == {"other:cnn@local": "undecided: no clear difference, so nothing to explain"}
    with pytest.raises(InputError, match="compares no environment 'othr'"):
        answers.explain(tmp_path / "run", "othr")


def test_a_kernel_without_scheduler_statistics_is_not_read_as_no_waiting(tmp_path):
    def unread(_, thread):
        return {**thread, "waited_ns": None}

    found = why(run_of(tmp_path / "run", {"other": {"waiting": 6.0}}, noise=0.004, change=unread), "other")
    assert found.unread[0] == "waiting for a CPU"
    blocked = found.parts.part("blocked").change
    assert blocked.low <= 6.0 / 1e3 <= blocked.high
    assert found.parts.part("waiting") is None
    assert any(text.startswith("not readable: waiting for a CPU") for _, text in tree_of(found))


COUNTED = {"dtlb_misses": 8000, "cache_misses": 4000}


def test_hardware_events_and_memory_calls_are_causes_where_they_were_counted_and_unreadable_elsewhere(tmp_path):
    def counted(trial, thread):
        more = 2 if trial.environment == "other" else 1
        return {**thread, **{name: more * count for name, count in COUNTED.items()}}

    def profile(trial):
        calls = {"mmap": 100, "munmap": 60} if trial.environment == "other" else {"mmap": 0, "munmap": 0, "brk": 0}
        return {"steps": 4, "memory_calls": calls}

    changes = {"other": {"kernel": 6.0, "minor_faults": 800.0}}
    found = why(run_of(tmp_path / "run", changes, noise=0.004, change=counted, profile=profile), "other")
    assert found.unread == ()
    dtlb, calls = found.causes.cause("dtlb_misses"), found.causes.cause("memory_calls")
    assert (dtlb.part, dtlb.before, dtlb.after) == ("user", 400.0, 800.0)
    assert (calls.part, calls.before, calls.after, calls.price_s) == ("kernel", 0.0, 40.0, 2e-6)
    assert calls.time.mean == pytest.approx(80e-6)
    rest = found.causes.unexplained["kernel"].mean
    costs = sum(found.causes.cause(event).time.mean for event in ("minor_faults", "memory_calls"))
    assert rest == pytest.approx(found.parts.part("kernel").change.mean - costs)
    text = [text for _, text in tree_of(found)]
    assert any(line.startswith("memory system calls 0 -> 40 per step, 2 us each") for line in text)
    assert not any("not readable" in line for line in text)

    plain = why(run_of(tmp_path / "plain", changes, noise=0.004), "other")
    assert plain.causes.cause("memory_calls") is None
    assert "not readable: memory system calls, data TLB misses, cache misses" in [text for _, text in tree_of(plain)]


@pytest.mark.parametrize(
    "profile", [{"steps": 0, "memory_calls": {"mmap": 3}}, {"memory_calls": {"mmap": 3}}, {"steps": 4},
                {"steps": 4, "memory_calls": {"mmap": -9}}, {"steps": 4, "memory_calls": {}}],
)  # fmt: skip
def test_memory_calls_that_cannot_be_true_are_not_counted(tmp_path, profile):
    found = why(run_of(tmp_path / "run", {"other": {"kernel": 6.0}}, profile=lambda _: profile), "other")
    assert "memory system calls" in found.unread


def test_the_parts_of_a_gpu_s_time_are_shown_and_marked_experimental(tmp_path):
    def profile(trial):
        kernel_ns = 8_000_000 if trial.environment == "other" else 12_000_000
        gpu = {"kernel_ns": kernel_ns, "copy_ns": 0, "collective_ns": 0, "gap_ns": 2_000_000}
        return {"steps": 4, "operators": [], "gpu": gpu}

    found = why(run_of(tmp_path / "run", {"other": {"user": -6.0}}, profile=profile), "other")
    assert found.gpu == {"kernel_ns": pytest.approx((0.003, 0.002)), "gap_ns": pytest.approx((0.0005, 0.0005))}
    assert "GPU: kernels 3.0 -> 2.0 ms (a profiled pass, experimental)" in [text for _, text in tree_of(found)]
    assert to_json(found)["gpu_s"]["kernel"] == pytest.approx((0.003, 0.002))


@pytest.mark.parametrize(
    "broken",
    [
        {"cpu_ns": -(2**40)},
        {"user_ns": 0, "system_ns": 0},
        {"waited_ns": -5},
        {"waited_ns": 10**12},
        {"minor_faults": -(2**31)},
    ],
)
def test_a_counter_that_ran_over_makes_its_trial_unknown_and_the_others_count(tmp_path, broken):
    def once(trial, thread):
        return {**thread, **broken} if trial.block == 2 and trial.environment == "other" else thread

    summary = run_of(tmp_path / "run", {"other": {"user": 9.0}}, change=once)
    assert why(summary, "other").parts.blocks == 7


@pytest.mark.parametrize("thread", [None, {"cpu_ns": "much"}, [], {"others": 3}])
def test_a_record_that_counts_no_thread_is_no_error(tmp_path, thread):
    document = {"schema": 1, "step_thread": thread}
    assert read_record(document).step_thread in (None, StepThread())
    summary = run_of(tmp_path / "run", {"other": {"user": 9.0}}, change=lambda *_: thread)
    assert why(summary, "other") is None
    assert answers.explain(tmp_path / "run")[1] == {
        "other:cnn@local": "its records do not split the time of a step into parts"
    }


def test_an_older_run_gives_the_parts_of_its_process():
    summary = summarise(RunFolder(RESULTS / "reference-default"))
    tcmalloc, book = why(summary, "tcmalloc"), why(summary, "book")
    assert not tcmalloc.parts.together.thread
    assert tcmalloc.parts.part("kernel").change.high < 0
    assert tcmalloc.causes.cause("minor_faults").estimate_s == pytest.approx(2.6e-6, rel=0.05)
    assert [(one.rule.name[:15], one.confirmed) for one in tcmalloc.findings] == [("memory returned", True)]
    assert [one.rule.name for one in book.findings] == ["threads sleep between parallel regions"]
    assert book.parts.part("user").change.high < 0 < book.parts.part("blocked").change.low
    assert "CPU time was counted per process" in printed(summary)
    for page in ("README.md", "docs/why.md"):
        assert line_of(tcmalloc) in (RESULTS.parent / page).read_text()


def test_the_page_has_the_answer_that_a_run_with_both_environments_gives():
    summary = summarise(RunFolder(RESULTS / "reference-default"))
    (arm,) = (arm for arm in summary.plan.arms if arm.environment == "tcmalloc")
    wanted = Wanted(arm, "baseline", "step", rule_of(MEMORY), "glibc-tuned", ("malloc", "glibc-tuned"))
    (found,) = confirm(summary.analysis, summary.measured, [wanted])
    assert found.confirmed
    assert "\n".join(confirmation_lines(found)) in (RESULTS.parent / "docs/why.md").read_text()


def test_the_answer_of_a_search_has_the_parts_and_the_cause_of_its_gain():
    search = TuneResult(RESULTS / "reference-tune")
    found = search.answer.why
    assert found.parts.part("kernel").change.high < 0
    assert [one.rule.name for one in found.findings] == [MEMORY]
    for text in (line_of(found), *reasons_of(found)):
        assert f"why: {text}" in str(search).splitlines()


def test_every_report_has_the_parts(tmp_path):
    summary = run_of(tmp_path / "run", {"other": {"kernel": 5.0, "minor_faults": 2000.0}}, noise=0.004)
    found = why(summary, "other")
    line = line_of(found)
    assert re.match(r"\+(4\.9|5\.\d) ms per step: kernel \+(4\.9|5\.\d) \[\+[\d.]+, \+[\d.]+\], user ", line)
    for text in (printed(summary, 160), to_html(summary)):
        assert line in text
    assert line.replace("[", r"\[").replace("]", r"\]") in to_markdown(summary)
    told = json.loads(json.dumps(summary_to_json(summary)))["why"]
    assert [one["environment"] for one in told] == ["other"]
    assert told[0]["counted"] == "step thread"
    assert told[0]["parts"]["kernel"]["mean"] == pytest.approx(found.parts.part("kernel").change.mean)
    rows = {
        row["environment"]: row for row in csv.DictReader(io.StringIO(effects_csv(summary))) if row["primary"] == "True"
    }
    assert float(rows["other"]["kernel_mean_s"]) == pytest.approx(found.parts.part("kernel").change.mean)
    assert rows["control"]["kernel_mean_s"] == ""
    trials = list(csv.DictReader(io.StringIO(trials_csv(summary))))
    assert all(float(row["thread.user"]) > 0 for row in trials)


def test_compare_explains_two_environments_of_one_run(tmp_path):
    summary = run_of(tmp_path / "run", {"fast": {"kernel": -2.0}, "slow": {"user": 5.0}}, noise=0.004)
    (table,) = answers.compare(tmp_path / "run", environments="baseline,slow").items
    assert table.why.parts.whole == why(summary, "slow").parts.whole
    (pair,) = answers.compare(tmp_path / "run", environments="slow,fast").items
    user = pair.why.parts.part("user").change
    assert user.low <= -5.0 / 1e3 <= user.high < 0
    told = answers.compare(tmp_path / "run", environments="slow,fast").to_json()["comparisons"][0]["why"]
    assert told["reference"] == "slow:cnn@local"
    (same,) = answers.compare(tmp_path / "run", environments="baseline,control").items
    assert same.why is None


MEMORY = "memory returned to the kernel and faulted in again"


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
        ("another kernel was chosen", {"isa": "onednn-avx2"}, True, [("isa", "onednn-avx2")]),
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
DAYS = (-0.5, 0.3, 0.6, -0.4)


def two_versions(folder, change, days=DAYS):
    """Write a run for each day, and one with a change of all environments; return their comparison."""
    for number, (day, cost) in enumerate([*((day, {}) for day in days), (0.2, change)]):
        all_of_them = {**cost, "user": day + cost.get("user", 0.0)}
        changes = dict.fromkeys(("baseline", "control", "other"), all_of_them)
        run_of(folder / f"run-{number}", changes, noise=0.004, seed=number)
    return answers.compare(folder / "run-0", folder / f"run-{len(days)}")


def test_the_difference_between_runs_has_parts_that_add_up_and_intervals_with_the_variation_of_days(tmp_path):
    found = two_versions(tmp_path, {"kernel": 8.0, "minor_faults": 3000.0})
    assert [item.verdict for item in found.items] == ["slower", "slower"]
    for item in found.items:
        parts = item.why.parts
        assert sum(part.change.mean for part in parts.parts) == pytest.approx(parts.whole.mean)
        assert parts.part("kernel").change.low < 8e-3 < parts.part("kernel").change.high
        user = parts.part("user").change
        assert user.low < -1e-3 < 1e-3 < user.high, "days differ by as much"
        assert [one.rule.name for one in item.why.findings] == [MEMORY]
        assert item.why.causes.cause("minor_faults").price_s == pytest.approx(FAULT_MS / 1e3)
        assert f"cause: in run-4, {MEMORY}" in reasons_of(item.why)
        assert "(with 4 older runs)" in next(tree_of(item.why))[1]
    told = json.loads(json.dumps(found.to_json()))["comparisons"][0]["why"]
    assert (told["environment"], told["reference"]) == ("run-4", "run-0:cnn@local")


@pytest.mark.parametrize(("change", "days"), [({}, DAYS), ({"kernel": 8.0}, DAYS[:2])])
def test_the_difference_between_runs_is_not_explained_unless_it_is_shown(tmp_path, change, days):
    assert [item.why for item in two_versions(tmp_path, change, days).items] == [None, None]
