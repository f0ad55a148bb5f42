"""The list of planted breaks fits the code: each still applies, and every room of the package has two."""

import re
from collections import Counter
from pathlib import Path

import pytest

from validation.planted import ROOT, Break, read_breaks

BREAKS = read_breaks()


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_a_break_applies_to_code_that_compiles_with_it_and_its_tests_are_there(one):
    compile(one.broken((ROOT / one.file).read_text(encoding="utf-8")), one.file, "exec")
    assert 1 <= len(one.tests) <= 3
    for file, *names in (test.split("::") for test in one.tests):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(re.search(rf"\b(class|def) {name}\b", text) for name in names)


def test_a_text_that_does_not_occur_once_is_refused():
    one = Break("one", "a.py", "x", "y", (), "")
    assert one.broken("x = 1") == "y = 1"
    for text in ("z = 1", "x = x"):
        with pytest.raises(ValueError, match="must occur once"):
            one.broken(text)


def test_every_room_has_two_breaks_and_the_benchmark_three():
    found = Counter(Path(one.file).parts[1 if one.file.startswith("envmatrix/") else 0] for one in BREAKS)
    rooms = [path.parent.name for path in (ROOT / "envmatrix").glob("*/__init__.py")]
    assert {room: found[room] for room in rooms if found[room] < 2} == {}
    assert found["bench"] >= 3
