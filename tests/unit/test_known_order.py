"""Known effects of an atlas: they order what is tried, and change no estimate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import processor
from bench.evidence import machine as bench_machine
from envmatrix.__main__ import main
from envmatrix.api import atlas as atlases
from envmatrix.api.atlas import OrderAtlas, order_text, read_named_or_local_atlas
from envmatrix.api.tuning import search as tunes
from envmatrix.api.tuning.space import SearchRequest
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.matrix.template import FOR_ANY
from envmatrix.results import RunFolder
from envmatrix.results.atlas_entries import AtlasEntry, ProcessorFacts, StoredEffect, digest
from envmatrix.search.next_trials import Budget, Search
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import Flag
from envmatrix.stats.measurements import read_measurements
from envmatrix.stats.meta_analysis.atlas import this_processor, work_digest
from envmatrix.stats.meta_analysis.effects_for_ordering import KnownEffect, Situation, known_effects
from tests.synthetic import Machine, make_plan, make_run, write_run
from tests.unit import test_first_look, test_tune_command
from validation import simulated_tuning

usual = test_first_look.made
tuned_folder = test_tune_command.folder
LEVELS = {"malloc": "glibc", "threads": "default"}
HERE = ProcessorFacts(model="this CPU", architecture="x86_64", cpus=2, cores=2)


@pytest.fixture
def made(usual, tmp_path):
    """Return a function that makes a matrix for a program that exists."""
    (tmp_path / "mine.py").touch()
    return usual


def effect(name, ratio, change, **more):
    """Return an effect whose verdict follows from an interval of 2 % on both sides."""
    verdict = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "undecided"
    fields = {
        "workload": "cnn", "work": "w", "engine": "local", "metric": "samples_per_s", "environment": name,
        "reference": "baseline:cnn@local", "changes": {change[0]: change[1:]}, "torch": "2.13.0", "ratio": ratio,
        "low": ratio - 0.02, "high": ratio + 0.02, "variance": 1e-4, "units": 8, "blocks": 8, "verdict": verdict,
    }  # fmt: skip
    return StoredEffect(**{**fields, **more})


def malloc(name, ratio, **more):
    return effect(name, ratio, ("malloc", "glibc", name), **more)


def one_thread(ratio, **more):
    return effect("one-thread", ratio, ("threads", "default", "one"), **more)


def entry(number, *effects, machine=None):
    machine = machine or ProcessorFacts(model=f"CPU {number}", architecture="x86_64", cpus=8, cores=4)
    return AtlasEntry(run=f"run {number}", machine=machine, effects=effects)


def three_machines(*effects):
    return [entry(number, *effects) for number in range(3)]


def written(folder, entries):
    folder.mkdir()
    for one in entries:
        text = one.model_dump_json(by_alias=True)
        (folder / f"run-{digest(text)}.json").write_text(text)
    return folder


def known(entries, works=("w",), machine=None):
    return {
        next(iter(one.levels.values())): one
        for one in known_effects(entries, Situation("baseline", LEVELS, frozenset(works), machine))
    }


# The order of `bench -- PROGRAM`


def test_what_was_faster_is_tried_first_and_what_was_slower_last_and_that_is_told_and_recorded(made):
    said, last = [], "one-thread last, which was slower on 3 of 3 machines"
    runs = three_machines(malloc("mimalloc", 1.1), malloc("jemalloc", 1.2), one_thread(0.7))
    found = made(5.0, said, atlas=OrderAtlas("./atlas", tuple(runs)))
    design = found.matrix.designs["default"]
    assert design.environments == ("jemalloc", "mimalloc")
    line = f"order: jemalloc and mimalloc first, which were faster on 3 of 3 machines; {last} (from ./atlas)"
    assert line in said
    assert design.description == line
    assert found.more.startswith("not tested yet: ")
    assert "one-thread" in found.more, "what is known to harm is named, not dropped"


def test_the_harmful_is_tried_where_there_is_time_for_all(made):
    runs = three_machines(malloc("mimalloc", 1.1), one_thread(0.7))
    found = made(0.5, atlas=OrderAtlas("./atlas", tuple(runs)), budget="1h")
    environments = found.matrix.designs["default"].environments
    assert (environments[0], environments[-1]) == ("mimalloc", "one-thread")
    assert sorted(environments) == sorted(FOR_ANY)


def test_without_an_atlas_and_with_named_environments_nothing_is_ordered(made):
    said, atlas = [], OrderAtlas("./atlas", tuple(three_machines(malloc("jemalloc", 1.2))))
    unordered = made(5.0).matrix.designs["default"]
    assert (unordered.environments, unordered.description) == (tuple(FOR_ANY)[:2], "")
    named = made(5.0, said, atlas=atlas, environments=("mimalloc", "jemalloc"))
    assert not [line for line in said if line.startswith("order")]
    assert named.matrix.designs["default"].description == ""


@pytest.mark.parametrize(
    "change",
    [
        {"reference": "tuned:cnn@local"},
        {"changes": {"malloc": ("tcmalloc", "jemalloc")}},
        {"changes": {"malloc": ("glibc", "an allocator of theirs")}},
        {"flags": (Flag.UNEQUAL_WORK,)},
        {"flags": (Flag.CONTENDED,)},
    ],
)
def test_another_baseline_other_levels_and_unusable_effects_give_no_order(made, change):
    said, runs = [], three_machines(malloc("jemalloc", 1.2, **change))
    environments = made(5.0, said, atlas=OrderAtlas("theirs", tuple(runs))).matrix.designs["default"].environments
    assert environments == tuple(FOR_ANY)[:2]
    assert "order: as usual, because theirs knows none of these to be faster or slower against this baseline" in said


# What is known


def test_runs_of_the_same_work_are_preferred_and_of_these_runs_of_this_processor():
    other = entry(1, malloc("jemalloc", 0.8, work="other"))
    same = entry(2, malloc("jemalloc", 1.1))
    here = entry(3, malloc("jemalloc", 1.3), machine=HERE)
    assert known([other, same])["jemalloc"].ratio == pytest.approx(1.1)
    assert known([other, same, here], machine=HERE)["jemalloc"] == KnownEffect(
        {"malloc": "jemalloc"}, 1.3, "faster", 1, 1, here=True
    )
    assert known([other, same, here])["jemalloc"].machines == 2, "on another processor, the average"
    assert known([other], machine=HERE)["jemalloc"].verdict == "slower", "other work is better than nothing"


def test_the_same_work_on_another_processor_is_preferred_to_other_work_on_this_one():
    same, other = entry(1, malloc("jemalloc", 1.1)), entry(2, malloc("jemalloc", 1.3, work="other"), machine=HERE)
    assert known([same, other], machine=HERE)["jemalloc"].ratio == pytest.approx(1.1)


def test_the_most_similar_runs_that_decide_anything_count():
    undecided = entry(3, malloc("jemalloc", 1.01), machine=HERE)
    found = known([*three_machines(malloc("jemalloc", 1.2)), undecided], machine=HERE)["jemalloc"]
    assert (found.verdict, found.agreeing, found.machines) == ("faster", 3, 4)


def test_faster_is_what_was_so_on_most_machines_and_slower_what_was_so_on_all():
    mixed = [entry(0, malloc("a", 1.2)), entry(1, malloc("a", 1.1)), entry(2, malloc("a", 0.95))]
    assert (known(mixed)["a"].verdict, known(mixed)["a"].agreeing) == ("faster", 2)
    mostly_slower = [entry(0, malloc("a", 0.8)), entry(1, malloc("a", 0.9)), entry(2, malloc("a", 1.01))]
    assert known(mostly_slower)["a"].verdict == ""


def test_environments_that_agree_on_as_many_machines_are_told_together():
    def told(verdict, ratio, agreeing, here=False):
        return KnownEffect({}, ratio, verdict, agreeing, 3, here)

    effects = {
        "d": told("slower", 0.7, 3), "c": told("slower", 0.9, 3), "b": told("faster", 1.1, 2), "a": told("", 1.5, 1),
        "e": told("faster", 1.3, 1, here=True),
    }  # fmt: skip
    assert order_text(effects, "x") == (
        "order: e first, which was faster on this processor; b next, which was faster on 2 of 3 machines; "
        "c and d last, which were slower on 3 of 3 machines (from x)"
    )


def test_a_program_is_the_same_work_before_its_run_as_in_its_run(tmp_path, monkeypatch):
    """Guards against a digest of real folders, which a run replaces by placeholders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MISSING", raising=False)
    Path("mine.py").write_text("print()")
    asked = Workload(name="mine", command=("python", "mine.py", f"{tmp_path}/data"), pass_env=("PATH", "MISSING"))
    placed = asked.model_copy(update={"files": str(tmp_path), "pass_env": ("PATH",)})
    plan = make_plan(("fast",), workloads=("mine",))
    folder = RunFolder(tmp_path / "results" / "one")
    folder.create(make_run(plan, workloads={"mine": placed}, programs={"mine": {"mine.py": digest("x")}}), "", tmp_path)
    monkeypatch.setattr(atlases, "program_files", lambda _: {"mine.py": digest("x")})
    run = folder.load()
    assert run.workloads["mine"].files == "{matrix}"
    assert atlases._work(asked, tmp_path) == work_digest(run.workloads["mine"], run.programs["mine"])


def test_the_processor_is_described_as_trials_describe_it():
    assert list(this_processor().flags) == (bench_machine.cpu()["flags"] or [])
    assert processor.instruction_sets("processor: 0\nflags\t: fpu avx2 avx fma\n") == ["avx", "avx2", "fma"]
    assert processor.instruction_sets("processor: 0\nFeatures\t: fp asimd\n") == ["asimd"]
    assert processor.instruction_sets("processor: 0\n") is None


# The folder


def test_a_damaged_file_is_a_warning_and_the_others_give_the_order(tmp_path):
    said, folder = [], written(tmp_path / "theirs", three_machines(malloc("jemalloc", 1.2)))
    damaged = sorted(folder.iterdir())[0]
    damaged.write_text(damaged.read_text()[:-9])
    assert len(read_named_or_local_atlas(folder, said.append).entries) == 2
    assert len(said) == 1
    assert said[0].startswith(f"warning: left out of the order: {damaged}:")
    for file in folder.iterdir():
        file.write_text("{")
    assert read_named_or_local_atlas(folder, said.append) is None


def test_the_atlas_of_this_folder_is_used_unless_another_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_named_or_local_atlas(None, print) is None
    written(tmp_path / "atlas", three_machines(malloc("jemalloc", 1.2)))
    assert read_named_or_local_atlas(None, print).shown == "./atlas"
    with pytest.raises(InputError, match="--atlas: no runs in nosuch"):
        read_named_or_local_atlas("nosuch", print)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bench", "--atlas", "nosuch", "--", "true"], "--atlas: no runs in nosuch\n  -> add one: envmatrix atlas add"),
        (["tune", "--atlas", "nosuch", "--", "true"], "--atlas: no runs in nosuch"),
        (["bench", "default", "--atlas", "nosuch"], "--atlas needs a program"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Estimates


def test_the_estimate_from_the_same_trials_is_the_same_with_and_without_an_atlas(tmp_path):
    found = []
    for number, description in enumerate(("", "order: fast first, which was faster on 3 of 3 machines (from x)")):
        plan, machine = make_plan(("fast", "slow")), Machine({"fast": 1.2, "slow": 0.9}, noise=0.01)
        folder = write_run(tmp_path / str(number), plan, machine, 8, design={"description": description})
        run = folder.load()
        measured = read_measurements(folder, run.plan)
        analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
        found.append([(one.arm, one.ratio, one.low, one.high, one.verdict) for one in analysis.primary_effects()])
    assert found[0] == found[1]


# The order of `tune`

SIZES = (4, 3, 3, 2, 2)


def searched(known=()):
    there = simulated_tuning.world(3, 0.03, SIZES)
    search, batches = Search(there.space, known=known), []
    while len(batches) < 2:
        batches.append(there.batch(search.next_step(batches, Budget(200, 200 - there.ran))))
    return search, batches


KNOWN = (
    KnownEffect({"f0": "l1"}, 1.2, "faster", 3, 3),
    KnownEffect({"f1": "l2"}, 1.1, "faster", 3, 3),
    KnownEffect({"f2": "l1"}, 0.8, "slower", 3, 3),
    KnownEffect({"f3": "l1", "f4": "l1"}, 1.5, "faster", 3, 3),
)


def test_the_balanced_design_shows_the_best_known_cells_first_and_slower_settings_last():
    search, (evidence, screen) = searched(KNOWN)
    settings = [search.space.levels_unlike_baseline(row) for row in screen.rows]
    assert screen.phase == "screen"
    assert {"f0": "l1", "f3": "l1", "f4": "l1"} in settings[:6]
    assert all({"f3", "f4"} <= set(cell) or "f0" in cell for cell in settings[:6])
    assert not [cell for cell in settings if cell.get("f2") == "l1"]
    assert any(search.space.levels_unlike_baseline(row) == {"f2": "l1"} for row in evidence.rows), "it was seen once"


def test_slower_settings_are_shown_where_nothing_else_is_left():
    everything = tuple(KnownEffect({f"f{n}": "l1"}, 0.8, "slower", 3, 3) for n in range(5))
    search, (_, screen) = searched(everything)
    assert len(screen.rows) > int(np.isfinite(search.known_gains).sum()) - 1


def test_the_model_learns_the_same_from_the_same_readings_whatever_is_known():
    search, batches = searched(KNOWN)
    with_known, without = (one.posterior(batches) for one in (search, Search(search.space)))
    assert np.array_equal(with_known.mean, without.mean)
    assert with_known.noise == without.noise


def test_a_search_records_what_ordered_it_and_resumes_with_it(tuned_folder):
    size, place = ("size", "small", "large"), ("place", "here", "there")
    Path("x.py").touch()
    runs = three_machines(
        effect("a", 1.2, size), effect("b", 1.3, ("size", "1.10", "large")), effect("c", 1.2, ("other", "x", "y")),
        effect("d", 1.01, place),
    )  # fmt: skip
    said, atlas = [], OrderAtlas("./atlas", tuple(runs))
    begun = tunes.begin_design_search(
        "default", SearchRequest(budget="5m", name="mine", atlas=atlas, progress=said.append)
    )
    assert "order: size=large first, which was faster on 3 of 3 machines (from ./atlas)" in said
    stored = json.loads((begun.folder.path / "study.json").read_text())["known"]
    assert [one["levels"] for one in stored] == [{"size": "large"}]
    assert begun.folder.load().known == begun.study.known
    assert begun.search.known_gains.max() == pytest.approx(np.log(1.2), abs=1e-3)
