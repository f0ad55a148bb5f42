"""Containers use the package mirror of the machine."""

import pytest

from envmatrix.build.debian import minimal_base
from envmatrix.errors import EngineError

STANZA = "Types: deb\n# a comment\nURIs: http://mirror.example/debian/\nSuites: bookworm\nComponents: main\n"
SECURITY = "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n"
LINE = "deb [signed-by=/k.gpg arch=amd64] https://old.example/debian bookworm main contrib\n"


def test_both_forms_of_apt_sources_are_read_and_security_is_passed_over():
    assert minimal_base.mirrors_in([SECURITY, STANZA]) == ["http://mirror.example/debian"]
    assert minimal_base.mirrors_in(["# deb http://no.example x main\n" + LINE]) == ["https://old.example/debian"]


def test_a_named_mirror_comes_first(monkeypatch):
    monkeypatch.setenv(minimal_base.VARIABLE, "http://mine.example/debian/")
    assert minimal_base.debian_mirror() == "http://mine.example/debian"


def test_where_none_is_known_it_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv(minimal_base.VARIABLE, raising=False)
    monkeypatch.setattr(minimal_base, "os_release", dict)
    with pytest.raises(EngineError, match="no Debian mirror"):
        minimal_base.debian_mirror()
