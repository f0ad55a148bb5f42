"""Explanations of effects: parts of a step that add up, and the events and counters below them."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest

from envmatrix.api import run_results
from envmatrix.errors import InputError
from envmatrix.evidence.trial_record import StepThread, read_record
from envmatrix.report.explanation import _share_text, any_covers_all_threads, line_of, reasons_of, tree_of
from envmatrix.report.formats.exports import effects_csv, successful_trials_csv
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from envmatrix.stats.attribution import step_time_parts
from envmatrix.stats.attribution.explanation import to_json
from envmatrix.stats.attribution.step_time_parts import Interval, Together
from envmatrix.stats.measurements import finite_medians
from envmatrix.stats.step_account import PARTS
from tests.committed import RESULTS
from tests.step_runs import FAULT_MS, USUAL, ms, run_of, why
from tests.unit.test_report_attributed import printed


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
    whole = found.block_differences("whole")
    assert np.allclose(sum(found.block_differences(name) for name in PARTS), whole, rtol=1e-12)
    assert sum(part.change.mean for part in found.parts) == pytest.approx(found.whole.mean)
    assert found.blocks == 8
    before, after = found.means("whole")
    assert after - before == pytest.approx(found.whole.mean)


def test_the_whole_is_the_difference_of_the_step_times_of_the_table(tmp_path):
    summary = run_of(tmp_path / "run", {"other": {"user": 5.0}})
    rates = summary.measured.table["samples_per_s"]
    step = dict(zip(summary.measured.arms, 64 / rates, strict=True))
    reference = (step["baseline:cnn@local"] + step["control:cnn@local"]) / 2
    assert why(summary, "other").parts.block_differences("whole") == pytest.approx(step["other:cnn@local"] - reference)


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


def test_of_two_copies_nothing_is_explained_and_it_is_said_why(tmp_path):
    run_of(tmp_path / "run", {"other": {}}, noise=0.05)
    found, silent = run_results.explain(tmp_path / "run")
    assert found == []
    assert silent == {"other:cnn@local": "undecided: no clear difference, so nothing to explain"}
    with pytest.raises(InputError, match="compares no environment 'othr'"):
        run_results.explain(tmp_path / "run", "othr")
    with pytest.raises(InputError) as refused:
        run_results.explain(tmp_path / "run", "control")
    assert refused.value.remedy == "known: other"


@pytest.mark.parametrize(
    ("blocks", "more", "reason"),
    [
        (4, {}, "a verdict needs 6 blocks, and there are 4"),
        (8, {"run_delay_s": 0.6, "others_s": 0.6}, "time without a CPU, which other programs had, can explain it"),
    ],
)
def test_a_difference_without_a_verdict_is_not_called_unclear(tmp_path, blocks, more, reason):
    run_of(tmp_path / "run", {"other": {"kernel": 6.0}}, blocks=blocks, noise=0.004, **more)
    found, silent = run_results.explain(tmp_path / "run")
    assert found == []
    assert silent["other:cnn@local"].startswith(f"undecided: {reason}")


def test_a_kernel_without_scheduler_statistics_is_not_read_as_no_waiting(tmp_path):
    def unread(_, thread):
        return {**thread, "waited_ns": None}

    found = why(run_of(tmp_path / "run", {"other": {"waiting": 6.0}}, noise=0.004, change=unread), "other")
    assert found.unread[0] == "waiting for a CPU"
    blocked = found.parts.part("blocked").change
    assert blocked.low <= 6.0 / 1e3 <= blocked.high
    assert found.parts.part("waiting") is None
    assert any(text.startswith("could not be measured: waiting for a CPU") for _, text in tree_of(found))


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
    assert "could not be measured: memory system calls, data TLB misses, cache misses" in [
        text for _, text in tree_of(plain)
    ]


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
    assert run_results.explain(tmp_path / "run")[1] == {
        "other:cnn@local": "its records do not split the time of a step into parts"
    }


def test_an_older_run_gives_the_parts_of_its_process():
    summary = summarise(RunFolder(RESULTS / "reference-default"))
    tcmalloc, book = why(summary, "tcmalloc"), why(summary, "book")
    assert not tcmalloc.parts.together.thread
    assert tcmalloc.parts.part("kernel").change.high < 0
    assert tcmalloc.causes.cause("minor_faults").estimate_s == pytest.approx(2.6e-6, rel=0.05)
    assert [(one.rule.name[:18], one.confirmed) for one in tcmalloc.findings] == [("memory is returned", True)]
    assert [one.rule.name for one in book.findings] == ["threads sleep between parallel regions"]
    assert book.parts.part("user").change.high < 0 < book.parts.part("blocked").change.low
    assert any_covers_all_threads([tcmalloc])
    assert line_of(tcmalloc) in (RESULTS.parent / "docs/why.md").read_text()


def test_every_report_has_the_parts(tmp_path):
    summary = run_of(tmp_path / "run", {"other": {"kernel": 5.0, "minor_faults": 2000.0}}, noise=0.004)
    found = why(summary, "other")
    line = line_of(found)
    assert re.match(r"\+(4\.9|5\.\d) ms per step: Linux kernel \+(4\.9|5\.\d) \[\+[\d.]+, \+[\d.]+\], user ", line)
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
    trials = list(csv.DictReader(io.StringIO(successful_trials_csv(summary))))
    assert all(float(row["thread.user"]) > 0 for row in trials)


def test_compare_explains_two_environments_of_one_run(tmp_path):
    summary = run_of(tmp_path / "run", {"fast": {"kernel": -2.0}, "slow": {"user": 5.0}}, noise=0.004)
    (table,) = run_results.compare(tmp_path / "run", environments="baseline,slow").items
    assert table.why.parts.whole == why(summary, "slow").parts.whole
    (pair,) = run_results.compare(tmp_path / "run", environments="slow,fast").items
    user = pair.why.parts.part("user").change
    assert user.low <= -5.0 / 1e3 <= user.high < 0
    told = run_results.compare(tmp_path / "run", environments="slow,fast").to_json()["comparisons"][0]["why"]
    assert told["reference"] == "slow:cnn@local"
    (same,) = run_results.compare(tmp_path / "run", environments="baseline,control").items
    assert same.why is None


DAYS = (-0.5, 0.3, 0.6, -0.4)


def two_versions(folder, change, days=DAYS):
    """Write a run for each day, and one with a change of all environments; return their comparison."""
    for number, (day, cost) in enumerate([*((day, {}) for day in days), (0.2, change)]):
        all_of_them = {**cost, "user": day + cost.get("user", 0.0)}
        changes = dict.fromkeys(("baseline", "control", "other"), all_of_them)
        run_of(folder / f"run-{number}", changes, noise=0.004, seed=number)
    return run_results.compare(folder / "run-0", folder / f"run-{len(days)}")


def test_the_difference_between_runs_has_parts_that_add_up_and_intervals_with_the_variation_of_days(tmp_path):
    found = two_versions(tmp_path, {"kernel": 8.0, "minor_faults": 3000.0})
    assert [item.verdict for item in found.items] == ["slower", "slower"]
    for item in found.items:
        parts = item.why.parts
        assert sum(part.change.mean for part in parts.parts) == pytest.approx(parts.whole.mean)
        assert parts.part("kernel").change.low < 8e-3 < parts.part("kernel").change.high
        user = parts.part("user").change
        assert user.low < -1e-3 < 1e-3 < user.high, "days differ by as much"
        assert [one.rule.name for one in item.why.findings] == ["memory is returned to Linux and faulted in again"]
        assert item.why.causes.cause("minor_faults").price_s == pytest.approx(FAULT_MS / 1e3)
        assert "cause: in run-4, memory is returned to Linux and faulted in again" in reasons_of(item.why)
        assert "(with 4 older runs)" in next(tree_of(item.why))[1]
    told = json.loads(json.dumps(found.to_json()))["comparisons"][0]["why"]
    assert (told["environment"], told["reference"]) == ("run-4", "run-0:cnn@local")


@pytest.mark.parametrize(("change", "days"), [({}, DAYS), ({"kernel": 8.0}, DAYS[:2])])
def test_the_difference_between_runs_is_not_explained_unless_it_is_shown(tmp_path, change, days):
    assert [item.why for item in two_versions(tmp_path, change, days).items] == [None, None]


@pytest.mark.parametrize(("mean", "shown"), [(0.69, "69 [41, 108] % of the difference"), (-1.02, ""), (1.67, "")])
def test_a_share_below_none_or_above_all_is_not_shown(mean, shown):
    """Parts of opposite signs gave -102 % and 167 % of a difference, which nobody could read."""
    assert _share_text(Interval(mean, 0.41, 1.08)) == shown


@pytest.mark.parametrize("phases", [0.2, 1.0])
def test_the_ends_of_a_share_are_found_among_many_blocks_as_by_trying_each(phases, monkeypatch):
    chance = np.random.default_rng(3)
    together = Together("reference", (), {}, {}, {}, np.full(600, phases), True, 4, 2, 0.95)
    for number in range(20):
        whole = number / 20 + np.cumsum(chance.normal(0, 0.05, 600)) + chance.normal(0, 1, 600)
        part = 0.5 * whole + chance.normal(0, 1, 600)
        part[:50] = whole[:50] = np.nan
        found = together.share(part, whole, 4)
        with monkeypatch.context() as patch:
            patch.setattr(step_time_parts, "_MANY_BLOCKS", 1000)
            assert found == together.share(part, whole, 4)


def test_medians_leave_out_what_is_not_known():
    values = np.array([[1.0, np.nan, np.inf, np.nan], [4.0, 2.0, 3.0, np.nan], [2.0, 6.0, np.nan, -np.inf]])
    np.testing.assert_array_equal(finite_medians(values, 0), [2.0, 4.0, 3.0, np.nan])
    np.testing.assert_array_equal(finite_medians(values[:, :2], 1), [1.0, 3.0, 4.0])
    np.testing.assert_array_equal(finite_medians(values[1:, :2], 0), [3.0, 4.0])
