"""Differences between two environments, for a real run and for synthetic evidence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envmatrix.__main__ import main
from envmatrix.api.differences import diff, differing, recorded_differences
from envmatrix.errors import InputError
from tests.committed import RESULTS
from tests.synthetic import Machine, make_plan, make_trials, write_run

RUN = RESULTS / "reference-default"


def test_only_what_differs_is_told_with_what_each_side_has() -> None:
    first = {"malloc": {"library": "libc", "path": "/a", "options": {}}, "torch": {"threads": 2}, "gil": True}
    second = {"malloc": {"library": "libx", "path": "/b", "options": {"narenas": 8}}, "torch": {"threads": 2}}
    assert list(differing(first, second)) == [
        ("gil", "true", ""),
        ("malloc.library", "libc", "libx"),
        ("malloc.options.narenas", "", "8"),
    ]


def test_what_differs_between_any_two_processes_is_no_difference() -> None:
    own = [{"programs": [{"pid": number}], "variables": {"BENCH_PROBE": f"/tmp/{number}"}} for number in (1, 2)]
    assert list(differing(*own)) == []
    first = {"system": {"load_1m": 0.5, "uptime_s": 9.0}, "cuda": {"nvml": {"devices": [], "driver": "570"}}}
    second = {"system": {"load_1m": 3.5, "uptime_s": 8.0}, "cuda": {"nvml": {"devices": [], "driver": "580"}}}
    assert list(differing(first, second)) == [("cuda.nvml.driver", "570", "580")]


def test_files_count_by_their_names_and_not_by_the_folder_of_an_image() -> None:
    first = {"libraries": ["/one/libc.so.6", "/one/libnccl.so.2"]}
    assert list(differing(first, {"libraries": ["/other/libc.so.6"]})) == [("libraries.libnccl.so.2", "loaded", "")]


def test_two_environments_of_a_run_differ_in_what_their_levels_set() -> None:
    found = {one.path: (one.first, one.second) for one in diff("baseline", "tcmalloc", run=RUN)}
    assert found["malloc.library"] == ("libc", "libtcmalloc")
    assert not [path for path in found if path.startswith(("system.", "cpu.", "image."))]
    assert diff("baseline", "control", run=RUN) == ()


@pytest.mark.parametrize(
    ("names", "more", "told"),
    [
        (("baseline", "tcmaloc"), {}, "has no environment 'tcmaloc'"),
        (("baseline", "tcmalloc"), {"engine": "docker"}, "its own matrix and engines"),
    ],
)
def test_what_a_run_does_not_have_is_told(names: tuple[str, str], more: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        diff(*names, run=RUN, engine=more.get("engine"))


def test_what_a_failed_trial_recorded_last_is_no_difference(tmp_path) -> None:
    plan = make_plan(("a",))
    folder = write_run(tmp_path / "run", plan, Machine({}), 1)
    for trial in make_trials(plan, Machine({}), 2):
        if trial.block:
            evidence = {"gil": f"as {trial.environment} failed"}
            failed = replace(
                trial, outcome="failed", reason="made up", document={**trial.document, "evidence": evidence}
            )
            folder.append(failed)
    assert "gil" not in {one.path for one in diff("baseline", "a", run=folder.path)}


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "baseline", "tcmalloc", "--run", str(RUN)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["baseline", "tcmalloc"]
    assert ["malloc.library", "libc", "libtcmalloc"] in [line.split() for line in table]
    assert main(["diff", "baseline", "control", "--run", str(RUN), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"first": "baseline", "second": "control", "differences": []}


@pytest.mark.parametrize(
    ("name", "first_ones"),
    [
        ("tcmalloc", ["variables.LD_PRELOAD", "malloc.library"]),
        (
            "book",
            ["variables.KMP_AFFINITY", "variables.KMP_BLOCKTIME", "variables.LD_PRELOAD", "variables.OMP_NUM_THREADS"],
        ),
    ],
)
def test_compare_prints_what_was_set_first_and_no_list_of_a_runtime(capsys, name: str, first_ones: list[str]) -> None:
    assert main(["compare", str(RUN), "--environments", f"baseline,{name}"]) == 0
    text = capsys.readouterr().out
    head, *lines = text[text.index("differences between") :].splitlines()
    assert head.startswith(f"differences between baseline and {name}: ")
    assert [line.split(":")[0].strip() for line in lines[: len(first_ones)]] == first_ones
    assert "openmp.settings" not in text


def test_two_runs_differ_in_what_each_recorded() -> None:
    other = RESULTS / "reference-long"
    found = {one.path: (one.first, one.second) for one in recorded_differences(RUN, "baseline", other, "tcmalloc")}
    assert found["malloc.library"] == ("libc", "libtcmalloc")
