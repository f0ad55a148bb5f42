"""Atlases: what is stored of a run, what holds over many machines, and folders with damaged or repeated entries."""

from __future__ import annotations

import io
import json
import math
import operator
import re
from dataclasses import replace

import pytest
from rich.console import Console

from envmatrix.__main__ import main
from envmatrix.api.atlas import add_to_atlas, read_atlas_folder
from envmatrix.report.tables.atlas import print_atlas, what_holds
from envmatrix.results import RunFolder
from envmatrix.results.anonymize import Anonymizer
from envmatrix.results.atlas_entries import (
    AtlasEntry,
    ProcessorFacts,
    StoredEffect,
    StoredSteady,
    digest,
    read_entries,
    read_entry,
    write_entry,
)
from envmatrix.stats.meta_analysis.atlas import read_atlas
from tests.committed import REFERENCES
from tests.synthetic import HOST, Machine, make_plan, write_run

EFFECT = StoredEffect(
    workload="cnn", work="w", engine="local", metric="samples_per_s", environment="fast",
    reference="baseline:cnn@local", changes={"malloc": ("glibc", "fast")}, torch="2.13.0", ratio=1.1, low=1.05,
    high=1.15, variance=4e-4, units=8, blocks=8, verdict="faster",
)  # fmt: skip


def processor(number):
    return ProcessorFacts(model=f"CPU {number}", architecture="x86_64", cpus=8, cores=4)


def entry(number, run=None, **changed):
    effect = EFFECT.model_copy(update=changed)
    return AtlasEntry(run=run or f"run {number}", machine=processor(number), effects=(effect,))


def run_on(tmp_path, name, host=HOST, blocks=8, **more):
    machine = Machine({"fast": 1.2}, noise=0.01)
    return write_run(tmp_path / "results" / name, make_plan(("fast",)), machine, blocks, host=host, **more).path


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Return an atlas of the committed runs; all but reference-long are of one machine."""
    folder = tmp_path_factory.mktemp("committed") / "atlas"
    assert all(is_new for _, is_new in add_to_atlas(REFERENCES, folder))
    return folder


# The committed runs


def test_the_committed_runs_are_of_three_processors_of_which_two_share_a_model(committed, capsys):
    assert main(["atlas", "show", "--from", str(committed)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{len(REFERENCES)} runs of 3 machines")
    assert "2 x Intel Xeon, avx512f" in said
    assert {"AMD EPYC, avx2", "AMD EPYC, avx512f"} == {*re.findall(r"AMD EPYC, \w+", said)}
    assert "measured on one machine, so nothing is known about others: " in said
    assert "on another machine" not in said
    assert said.count("1 effect left out: other work") == 3, "the batch sizes of reference-book"


def test_runs_of_one_machine_are_combined_by_what_changes_whatever_it_is_called(committed):
    rows = {(row.first.workload, *row.first.changes.items()): row for row in read_atlas_folder(committed).rows}
    row = rows["fashion-cnn", ("malloc", ("glibc", "tcmalloc"))]
    (machine,) = (one for one in row.machines if one.machine.model.startswith("AMD"))
    assert machine.runs == 2, "tcmalloc and malloc-tcmalloc+openmp-gnu"
    assert [one.runs for one in row.machines if one is not machine] == [1]
    assert 1.10 < machine.effect.low < machine.effect.ratio < machine.effect.high < 1.21
    assert machine.effect.verdict == "faster"


def test_an_entry_is_small_and_has_the_figures_of_its_report_without_trials_or_names(committed):
    summary = json.loads((REFERENCES[2] / "summary.json").read_text())
    key = operator.itemgetter("environment", "workload", "ratio")
    known = {key(effect): effect for effect in summary["effects"] if effect["primary"]}
    entries = [json.loads(file.read_text()) for file in committed.iterdir()]
    (found,) = [one for one in entries if {key(effect) for effect in one["effects"]} == {*known}]
    for effect in found["effects"]:
        for name in ("low", "high", "verdict", "blocks", "flags"):
            assert effect[name] == known[key(effect)][name], name
    assert set(found) == {"schema", "run", "machine", "effects"}
    assert max(file.stat().st_size for file in committed.iterdir()) < 8000


def test_a_run_is_anonymized_although_it_was_not(tmp_path, monkeypatch):
    """Guards against the name of the host, a user's folder in a level, or the run's own name in an entry."""
    path = run_on(tmp_path, "secret-project", replace(HOST, name="vm9"))
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"malloc": "fast"', '"malloc": "/home/dora/liballoc.so"'))
    ((file, _),) = add_to_atlas([path], tmp_path / "atlas")
    assert "{home}/liballoc.so" in file.read_text()
    for name in ("dora", "vm9", "node-1", "secret", str(tmp_path)):
        assert name not in file.read_text()


# One folder, many writers


def test_a_run_that_is_there_is_not_added_again_whatever_it_is_called(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = run_on(tmp_path, "one")
    assert main(["atlas", "add", "one"]) == 0
    assert "json: added" in capsys.readouterr().out
    path.rename(path.with_name("renamed"))
    assert main(["atlas", "add", "renamed", "--json"]) == 0
    ((file, is_new),) = [(one["file"], one["new"]) for one in json.loads(capsys.readouterr().out)]
    assert not is_new
    assert [str(path) for path in (tmp_path / "atlas").iterdir()] == [str(tmp_path / file)]


def test_a_resumed_run_counts_once_with_all_its_blocks(tmp_path):
    for blocks in (8, 12):
        add_to_atlas([run_on(tmp_path / str(blocks), "one", blocks=blocks)], tmp_path / "atlas")
    assert len([*(tmp_path / "atlas").iterdir()]) == 2, "nothing is overwritten"
    atlas = read_atlas_folder(tmp_path / "atlas")
    assert (atlas.runs, [one.effect.blocks for one in atlas.rows[0].machines]) == (1, [12])


def test_a_machine_is_its_processor_and_not_its_name(tmp_path):
    hosts = [replace(HOST, name="a"), replace(HOST, name="b"), replace(HOST, name="c", cpu_model="another CPU")]
    runs = [run_on(tmp_path, host.name, host, created=f"2026-01-0{day}") for day, host in enumerate(hosts, 1)]
    add_to_atlas(runs, tmp_path / "atlas")
    atlas = read_atlas_folder(tmp_path / "atlas")
    assert (atlas.runs, atlas.machines) == (3, 2)
    assert sorted(one.runs for one in atlas.rows[0].machines) == [1, 2]
    assert atlas.rows[0].general.machines == 2
    assert atlas.rows[0].general.prediction is None


def damaged(file):
    file.write_text(file.read_text()[:-20])


def edited(file):
    file.write_text(file.read_text().replace('"faster"', '"slower"'))


def newer(file):
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))


def foreign(file):
    text = '{"schema": 1, "hello": "world"}'
    file.unlink()
    file.with_name(f"run-{digest(text)}.json").write_text(text)


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        (damaged, "not valid JSON", "restore it from a copy"),
        (edited, "its content does not match its name", "delete it and add its run again"),
        (newer, "schema 2 is newer than this version of envmatrix can read", "upgrade envmatrix"),
        (foreign, "this is not an entry of an atlas (", "delete it and add its run again"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_the_others_are_shown(tmp_path, capsys, change, words, remedy):
    hosts = [HOST, replace(HOST, cpu_model="another CPU")]
    runs = [run_on(tmp_path, f"r{n}", host, created=f"2026-01-0{n + 1}") for n, host in enumerate(hosts)]
    files = [file for file, _ in add_to_atlas(runs, tmp_path / "atlas")]
    change(files[0])
    assert main(["atlas", "show", "--from", str(tmp_path / "atlas")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 run of 1 machine")
    (line,) = [line for line in said.splitlines() if line.startswith("warning: left out: ")]
    assert words in line
    assert remedy in line
    if files[0].exists():  # a damaged file is not replaced, nor taken for the run
        before = files[0].read_bytes()
        assert main(["atlas", "add", str(runs[0]), "--to", str(tmp_path / "atlas")]) == 2
        assert words in capsys.readouterr().err
        assert files[0].read_bytes() == before


def test_git_may_change_the_ends_of_lines(tmp_path):
    ((file, _),) = add_to_atlas([run_on(tmp_path, "one")], tmp_path / "atlas")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_entry(file).effects[0].environment == "fast"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["add", "results/one/run.json"], "run.json is not a run"),
        (["add", "nosuch"], "no run 'nosuch'"),
        (["add", "short"], "short has no effect with an interval yet\n  -> continue the run: envmatrix resume short"),
        (["add", "one", "--to", "file"], "file is a file, and an atlas is a folder\n  -> name a folder: --to FOLDER"),
        (["add", "one", "--to", "file/atlas"], "Not a directory"),
        (["add", "one", "--from", "x"], "are for `show`\n  -> envmatrix atlas add RUN --to x"),
        (["show", "one"], "RUN, --to and --sign are for `add`"),
        (["show", "--from", "nosuch"], "no such folder: nosuch\n  -> add a run: envmatrix atlas add RUN --to nosuch"),
        (["show", "--from", "results"], "no runs in the atlas results"),
        (["add", "one", "--output", "page.html"], "--from, --signers and --output are for `show`"),
        (["show", "--sign", "key"], "RUN, --to and --sign are for `add`"),
        (["show", "--from", "atlas", "--signers", "nosuch"], "no such file: nosuch\n  -> --signers FILE lists"),
        (["shwo"], "did you mean 'show'?"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(tmp_path, capsys, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    run_on(tmp_path, "one")
    run_on(tmp_path, "short", blocks=1)
    (tmp_path / "file").touch()
    assert main(["atlas", *argv]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "results"]


def two_processors(path):
    trials = path / "trials.jsonl"
    trials.write_text(trials.read_text().replace('"made-up CPU"', '"another CPU"', 1))


def two_sides(path):
    body = json.loads((path / "run.json").read_text())
    side = {"matrix": "m", "matrix_digest": "sha256:00", "libraries": []}
    (path / "run.json").write_text(json.dumps({**body, "sides": {"old": side, "new": side}}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (two_processors, "one ran on several kinds of processors\n  -> measure one run per kind: "),
        (two_sides, "one compares two versions of one environment (--rerun)\n  -> "),
        (lambda path: RunFolder(path).lock(), "this run is still being measured\n  -> add it when it has ended"),
    ],
)
def test_a_run_that_cannot_be_pooled_is_refused(tmp_path, capsys, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    change(run_on(tmp_path, "one"))
    assert main(["atlas", "add"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "atlas").exists()


# What holds over machines


def test_effects_that_do_not_measure_the_environment_alone_are_left_out_whatever_their_verdict():
    left_out = [entry(number, flags=(flag,)) for number, flag in enumerate(("unequal-work", "cpu-contention"), 3)]
    (row,) = read_atlas([entry(1), entry(2, flags=("slow-trials",)), *left_out]).rows
    assert (len(row.machines), row.left_out) == (2, 2)


def test_another_program_another_change_or_another_reference_is_another_row():
    others = [{"work": "x"}, {"changes": {"malloc": ("a", "b")}}, {"reference": "b:cnn@local"}, {"engine": "docker"}]
    assert len(read_atlas([entry(0), *(entry(1, **other) for other in others)]).rows) == 5
    assert len(read_atlas([entry(0), entry(1, environment="called otherwise")]).rows) == 1


def test_what_holds_on_all_machines_is_one_line(capsys, tmp_path):
    (tmp_path / "atlas").mkdir()
    for number, ratio in enumerate((1.10, 1.12, 1.13, 1.14, 1.15, 1.17)):
        text = entry(number, ratio=ratio, low=ratio - 0.02, high=ratio + 0.02, variance=1e-4).model_dump_json(
            by_alias=True
        )
        (tmp_path / "atlas" / f"run-{digest(text)}.json").write_text(text)
    assert main(["atlas", "show", "--from", str(tmp_path / "atlas")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fast: ")]
    assert line.startswith(
        "fast: faster on 6 of 6 machines, ratios 1.10 to 1.17; average 1.13 (95 % CI 1.11 to 1.16), spread between "
    )
    assert "; on another machine 1.07 to 1.20 (95 % prediction interval); leaving one out: 6 of 6 in it" in line
    assert main(["atlas", "show", "--from", str(tmp_path / "atlas"), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["rows"][0]["general"]["machines"] == len(body["rows"][0]["machines"]) == 6


def test_a_thousand_runs_are_one_row_each_environment():
    entries = [entry(number, ratio=1.0 + number / 5000) for number in range(1000)]
    (row,) = read_atlas(entries).rows
    assert row.general.machines == 1000
    assert 0.9 <= row.general.covered / 1000 <= 1.0


# The steady effect


def steady(ratio, **more):
    values = {"ratio": ratio, "low": ratio - 0.02, "high": ratio + 0.02, "variance": 1e-4, "units": 3}
    return StoredSteady(**values, verdict="same", since_s=5.5, until_s=11.1, **more)


def test_the_effect_of_later_steps_is_stored_as_the_report_has_it(committed):
    (summary,) = (
        json.loads((path / "summary.json").read_text()) for path in REFERENCES if path.name.endswith("-steady")
    )
    known = {arm["environment"]: arm["steady"] for arm in summary["arms"] if arm["steady"]}
    entries = [read_entry(file) for file in committed.iterdir()]
    found = {effect.environment: effect.steady for one in entries for effect in one.effects if effect.steady}
    assert found.keys() == known.keys() - {"control"}
    for name, effect in found.items():
        assert (effect.ratio, effect.low, effect.high) == pytest.approx(
            tuple(map(known[name].get, ("ratio", "low", "high")))
        )
        assert (effect.units, effect.verdict) == (known[name]["groups"], known[name]["verdict"])
        assert 1.5 < math.log(effect.high / effect.low) / 2 / math.sqrt(effect.variance) < 5, "standard errors"


def test_later_steps_are_shown_next_to_the_first_ones(committed, capsys):
    assert main(["atlas", "show", "--from", str(committed)]) == 0
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("glibc-tuned: faster on 2 of 2")
    ]
    assert "; later steps on one machine: 0.99 (0.92 to 1.06), undecided; average 1.14" in line


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_with_later_steps_fits_the_terminal(committed, width):
    console = Console(width=width, file=io.StringIO())
    print_atlas(read_atlas_folder(committed), console)
    said = console.file.getvalue()
    assert "1.12 (1.02 to 1.24)    0.99 (0.92 to 1.06)" in said
    assert "…" not in said


def test_later_steps_are_pooled_over_machines_as_the_first_ones_are():
    runs = [entry(number, steady=steady(ratio)) for number, ratio in enumerate((1.0, 1.01, 1.02))]
    (row,) = read_atlas([*runs, entry(9)]).rows
    assert (row.general.machines, row.later.general.machines) == (4, 3)
    assert row.later.general.ratio == pytest.approx(1.01, abs=1e-3)
    assert row.later.find(processor(9)) is None
    assert "faster on 4 of 4 machines, ratios 1.10 to 1.10; later steps: undecided on all of 3" in what_holds(row)


def test_an_entry_of_a_run_that_was_stored_without_its_later_steps_gives_way_to_one_with_them(tmp_path):
    for one in (entry(1), entry(1, steady=steady(1.0))):
        write_entry(tmp_path, one, Anonymizer({}))
    assert len([*tmp_path.iterdir()]) == 2
    assert [bool(one.effects[0].steady) for one in read_entries(tmp_path).entries] == [True]


def test_of_a_run_that_was_stored_twice_more_blocks_count_before_later_steps(tmp_path):
    for one in (entry(1, blocks=12), entry(1, blocks=8, steady=steady(1.0))):
        write_entry(tmp_path, one, Anonymizer({}))
    assert [one.effects[0].blocks for one in read_entries(tmp_path).entries] == [12]
