"""Effects of two runs are compared on the log scale; the criterion keeps its nominal error rates."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from envmatrix.__main__ import main
from envmatrix.build.cache import file_digest
from envmatrix.cli.reproduce import describe_reproduction
from envmatrix.errors import InputError
from envmatrix.plan import Plan, make_arms
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.report_data import summarise
from envmatrix.runner.reproduction.reproduced_effects import (
    Difference,
    Reproduction,
    compare_reproduction,
    image_differences,
    run_differences,
)
from envmatrix.stats.comparisons.replication import answer_of, compare_effects, effect_ratio_interval
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.effects import LEVEL, Effect, Flag
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import HOST, NODE, Machine, make_environment, make_plan, slowed, write_run

PLAN = Plan("d", make_arms(("a", "b"), ("w",), ("local",), "base"), 1, 2, 40, 0.03, 0.03, 60)


def effect(ratio, spread=0.02, blocks=10, environment="a", **more):
    reach = 2 * spread / math.sqrt(blocks)
    body = {
        "workload": "w", "environment": environment, "engine": "local", "reference": "base:w@local", "metric": "m",
        "ratio": ratio, "low": ratio * math.exp(-reach), "high": ratio * math.exp(reach), "p": None,
        "verdict": "faster", "blocks": blocks, "spread": spread, "arm": f"{environment}:w@local", "primary": True,
        "error": spread / math.sqrt(blocks), "units": blocks,
    }  # fmt: skip
    return Effect(**{**body, **more})


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (effect(1.25), effect(1.25), "reproduced"),
        (effect(1.25), effect(1.26), "reproduced"),
        (effect(1.25), effect(1.10), "not reproduced"),
        (effect(1.25), effect(0.80), "not reproduced"),
        (effect(1.25, spread=0.2), effect(1.20, spread=0.2), "undecided"),
        (effect(1.25), effect(1.25, blocks=1, low=None, high=None), "undecided"),
        (effect(1.25, low=None, high=None), effect(1.25), "undecided"),
        (effect(1.25), None, "undecided"),
    ],
)
def test_an_effect_is_reproduced_not_reproduced_or_undecided(one, other, answer):
    second = Analysis(PLAN, (other,) if other else ())
    found = compare_effects(Analysis(PLAN, (one, effect(1.0, environment="control"))), second)
    assert [item.answer for item in found] == [answer]


@pytest.mark.parametrize(("blocks", "answer"), [(12, "undecided"), (24, "not reproduced")])
@pytest.mark.parametrize("slow", ["fast", "baseline", "control"])
@pytest.mark.parametrize("later", [True, False])
def test_below_20_blocks_nothing_is_reproduced_or_not_where_a_side_has_slow_trials(blocks, answer, slow, later):
    plan = make_plan(("fast", "other"), max_blocks=60)

    def analysis(speed, marked):
        machine = Machine({"fast": speed}, noise=0.01)
        trials = slowed(plan, machine, blocks, lambda trial: trial.environment == slow and trial.block in marked)
        return estimate(plan, fold_trials(plan, trials))

    runs = [analysis(2.0, ()), analysis(1.1, (1, 2))]
    fast = compare_effects(*(runs if later else runs[::-1]))[0]
    assert (fast.environment, fast.answer) == ("fast", answer)
    assert not fast.low <= 1 <= fast.high
    assert ("outliers: then a verdict needs 20 blocks" in fast.unsure) == (answer == "undecided")


def test_what_short_runs_cannot_know_stands_below_the_answer(tmp_path):
    plan = make_plan(("fast",))
    folders = [write_run(tmp_path / name, plan, Machine({"fast": 1.2}), 8) for name in ("then", "now")]
    found = compare_reproduction(tuple(folders), {}, {}, 0.05)
    assert [text.partition(": the")[0] for text in found.cautions] == [
        f"{folder.load().name}: Short run (2 minutes)" for folder in folders
    ]
    assert describe_reproduction(found).endswith("\n".join(found.cautions))
    assert found.to_json()["cautions"] == list(found.cautions)


def test_the_interval_of_two_effects_holds_with_slow_trials_and_without():
    low, high = effect_ratio_interval(effect(1.2, usual=1.3), effect(1.2))
    plain = effect_ratio_interval(effect(1.2), effect(1.2))
    assert (low, high) == pytest.approx((effect_ratio_interval(effect(1.3), effect(1.2))[0], plain[1]))


def test_an_effect_of_an_environment_that_fails_more_is_not_reproduced_nor_not():
    failing = effect(1.25, flags=(Flag.FAILS_MORE,))
    for pair in ((failing, effect(1.25)), (effect(1.25), failing), (effect(1.1), failing)):
        (found,) = compare_effects(*(Analysis(PLAN, (one,)) for one in pair))
        assert (found.answer, found.unsure) == ("undecided", "more of its trials failed than of its reference")


def test_what_a_pack_says_cannot_steer_the_terminal():
    hostile = Difference("host", "kernel", "6.1\x1b]0;title\x07", "6.1")
    runs = SimpleNamespace(name="a\x1b[2Jb"), SimpleNamespace(name="here")
    said = describe_reproduction(
        Reproduction(*runs, (hostile,), compare_effects(Analysis(PLAN, (effect(1.2),)), Analysis(PLAN, ())), 0.05)
    )
    assert "kernel was 6.1" in said
    assert "not measured" in said
    assert not set(said) & {"\x1b", "\x07"}


def test_a_missing_interval_never_becomes_a_claim():
    assert answer_of(None, None, 0.05) == "undecided"
    assert effect_ratio_interval(effect(1.2, blocks=1), effect(1.2)) is None


def test_swapping_the_two_runs_inverts_the_interval():
    low, high = effect_ratio_interval(effect(1.3, 0.05, 7), effect(1.1, 0.02, 12))
    assert effect_ratio_interval(effect(1.1, 0.02, 12), effect(1.3, 0.05, 7)) == pytest.approx((1 / high, 1 / low))


def test_identical_effects_are_called_different_no_more_often_than_promised():
    chance = np.random.default_rng(1)
    wrong = 0
    for _ in range(2000):
        pair = []
        for blocks, noise in ((8, 0.02), (12, 0.05)):
            logs = chance.normal(0.2, noise, blocks)
            pair.append(effect(math.exp(logs.mean()), float(logs.std(ddof=1)), blocks))
        low, high = effect_ratio_interval(*pair)
        wrong += low > 1 or high < 1
    assert wrong / 2000 == pytest.approx(1 - LEVEL, abs=0.012)


def test_directions_are_compared_only_where_both_runs_have_one():
    def same(first, second):
        found = compare_effects(
            Analysis(PLAN, (effect(1.1, verdict=first),)), Analysis(PLAN, (effect(1.1, verdict=second),))
        )
        return found[0].same_direction

    assert same("faster", "faster") is True
    assert same("faster", "slower") is False
    assert same("faster", "same") is None
    assert same("undecided", "faster") is None


class Fact:
    """The parts of a Run that are searched for differences."""

    def __init__(self, **more):
        self.host = replace(HOST, cpu_model="x")
        self.bench_digest = "sha256:1"
        self.environments = {"a": make_environment("a", variables={"OMP_NUM_THREADS": "2"})}
        self.images = {"default@local": {"lock_digest": "sha256:9", "package torch": "2.13.0"}}
        self.skipped = {}
        self.__dict__.update(more)


def differ(first, second):
    return run_differences(first, second, [first.host, second.host])


def test_what_differs_is_listed_one_by_one():
    assert differ(Fact(), Fact()) == []
    other = Fact(
        host=replace(HOST, cpu_model="y"), skipped={"a:w@local": "no libiomp5"},
        environments={"a": make_environment("a", variables={"OMP_NUM_THREADS": "64"})},
    )  # fmt: skip
    told = [str(item) for item in differ(Fact(), other)]
    assert told == [
        "host: cpu_model was x, is y",
        "environment a: OMP_NUM_THREADS was 2, is 64",
        "a:w@local: skipped here was absent, is no libiomp5",
    ]


def test_images_are_compared_by_what_they_are_made_of_and_by_their_bits():
    assert image_differences(Fact(), Fact(), {}, {}) == []
    newer = Fact(images={"default@local": {"lock_digest": "sha256:8", "package torch": "2.14.1"}})
    told = image_differences(Fact(), newer, {"default@apptainer": {"sha256": "1"}}, {"default@apptainer": "2"})
    assert [item.what for item in told] == ["lock_digest", "package torch", "sha256 of its file"]


@pytest.mark.parametrize("vouched", [True, False])
def test_before_an_archive_runs_that_nobody_vouches_for_this_is_said(tmp_path, monkeypatch, capsys, vouched):
    def begin_again(*_, **__):
        raise InputError("it would run now")

    pack = SimpleNamespace(manifest=SimpleNamespace(files={}, left_out=()), signed="not signed")
    monkeypatch.setattr("envmatrix.api.reproduction_packs.open_pack", lambda *_: pack)
    monkeypatch.setattr("envmatrix.api.reproduction_packs.begin_packed_run", begin_again)
    archive = tmp_path / "run.tar.gz"
    archive.touch()
    given = ["--sha256", file_digest(archive)] if vouched else []
    assert main(["reproduce", str(archive), "--results", str(tmp_path), *given]) == 2
    said = capsys.readouterr().err
    assert ("the archive's own bench/" in said) is not vouched
    assert "it would run now" in said


def test_what_nobody_knows_of_the_nodes_of_a_cluster_is_no_difference():
    assert differ(Fact(), Fact(host=NODE)) == []
    assert [str(item) for item in differ(Fact(host=NODE), Fact(host=replace(NODE, cpus=(0,))))] == [
        "host: cpus was [0, 1], is [0]"
    ]


@pytest.mark.parametrize("by_slurm", [0, 1])
def test_of_nodes_that_slurm_chose_what_their_trials_saw_is_compared_and_shown(tmp_path, by_slurm):
    """Records of synthetic trials name a processor and a kernel; this test adds 4 GiB of memory."""
    plan = make_plan(("fast",))
    known = replace(HOST, cpu_model="made-up CPU", kernel="6.1", memory_bytes=2**31)
    folders = tuple(
        write_run(tmp_path / str(at), plan, Machine({}), 2, host=NODE if at == by_slurm else known) for at in (0, 1)
    )
    file = folders[by_slurm].trials_file
    file.write_text(file.read_text().replace('"cpu":{', '"memory":{"total_bytes":4294967296},"cpu":{'))
    found = compare_reproduction(folders, {}, {}, 0.03).differences
    gib = (2, 4) if by_slurm else (4, 2)
    assert [str(item) for item in found if item.where == "host"] == [
        f"host: memory_bytes was {gib[0] * 2**30}, is {gib[1] * 2**30}"
    ]
    rows = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", to_html(summarise(folders[by_slurm]))))
    assert (rows["host memory_bytes"], rows["host kernel"]) == (str(2**32), "6.1")
    assert "host numa_nodes" not in rows, "no trial saw it"
