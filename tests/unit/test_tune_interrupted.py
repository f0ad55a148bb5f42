"""An interrupted or killed search: it reports that, only counts the time in which it ran, and can be resumed."""

from __future__ import annotations

import contextlib
import json

import pytest

from envmatrix.api.tuning import search
from envmatrix.errors import StoreError
from envmatrix.results.folder import RunFolder
from envmatrix.search.study_folder import StudyFolder
from tests.unit.test_tune_loop import Stopped, begun, machine, resumed, watch  # noqa: F401 - a fixture


@pytest.mark.parametrize("at", [30, 112])
def test_the_time_in_which_a_search_lay_killed_is_none_of_its_budget(machine, at):  # noqa: F811
    """Guards against charging the time between sessions: a search of 120 s that was killed took 127 s."""
    machine.stops_at = at
    with pytest.raises(Stopped):
        search.finish_search(begun(), watch)
    machine.stops_at, machine.clock = None, machine.clock + 3600.0
    again = resumed()
    assert again.answer.spent_s == pytest.approx(len(machine.ran) * machine.wall_s)
    assert len(StudyFolder(again.folder).sessions()) == 2


def test_a_damaged_note_of_when_it_went_on_is_told_with_its_place(machine):  # noqa: F811
    search.finish_search(begun(), watch)
    file = search.find_study("mine") / "sessions.jsonl"
    file.write_text(file.read_text() + '{"schema": 1, "began": 10}\n{"schema": 1, "beg')
    assert resumed().settings, "a crash cut the last line short"
    file.write_text('{"schema": 1, "began": "soon"}\n')
    with pytest.raises(StoreError, match="has no time at which") as caught:
        StudyFolder(file.parent).sessions()
    assert str(caught.value.where).endswith("sessions.jsonl:1")


@pytest.mark.parametrize("step", [1, 3])
def test_ctrl_c_between_two_steps_ends_it_as_in_one_of_them(machine, monkeypatch, step):  # noqa: F811
    create, begun_ = RunFolder.create, []

    def interrupted(folder, *about, **more):
        begun_.append(folder)
        if len(begun_) == step:
            raise KeyboardInterrupt
        create(folder, *about, **more)

    monkeypatch.setattr(RunFolder, "create", interrupted)
    found = []
    with contextlib.suppress(KeyboardInterrupt):
        found.append(search.finish_search(begun(), watch))
    assert [one.exit_code for one in found] == ([] if step == 1 else [130]), "there is nothing to resume before a step"
    if found:
        assert json.loads((found[0].folder / "tune.json").read_text())["interrupted"] is True
        assert resumed().settings == {"size": "large", "place": "there"}


def test_a_recipe_that_is_recommended_no_more_is_not_left_on_disk(machine):  # noqa: F811
    result = search.finish_search(begun(), watch)
    assert "SIZE=large" in (result.folder / "recipe.sh").read_text()
    machine.stops_at, machine.trouble = len(machine.ran) + 6, lambda _: KeyboardInterrupt()
    assert resumed("240s").exit_code == 130
    assert not (result.folder / "recipe.sh").exists()
