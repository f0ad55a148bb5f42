from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.build.lockfile import Lock, PinnedPackage, Section, parse_lock, request_text
from envmatrix.errors import InputError

FILE = Path("containers/locks/x.txt")
DIGEST = "a" * 64

names = st.from_regex(r"[a-z0-9][a-z0-9.+-]{0,20}", fullmatch=True)
versions = st.from_regex(r"[0-9][A-Za-z0-9.!+~:-]{0,12}", fullmatch=True)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
wheels = st.builds(PinnedPackage, names, versions, digests)
packages = st.builds(lambda n, v, d: PinnedPackage(n, v, d, f"{n}_1_amd64.deb"), names, versions, digests)
asked = (
    st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1), min_size=1)
    .map(request_text)
    .filter(bool)
)
sections = st.builds(
    Section,
    st.sampled_from(["image", "library"]),
    names,
    asked,
    st.lists(st.one_of(wheels, packages), max_size=4).map(tuple),
)


def without_lines(lock: Lock) -> list[Section]:
    """Return the sections as they were before they were written to a file."""
    unwritten = {"lock": Path(), "line": 0}
    return [
        replace(section, lock=Path(), packages=tuple(replace(pin, **unwritten) for pin in section.packages))
        for section in lock.sections
    ]


@given(st.lists(sections, max_size=4))
def test_a_lock_reads_back_as_it_was_written(written: list[Section]) -> None:
    text = Lock(FILE, tuple(written)).text()
    assert without_lines(parse_lock(text, FILE)) == written
    assert parse_lock(text, FILE).text() == text


def test_each_package_knows_its_line_in_the_file() -> None:
    section = Section("image", "i", "a b", (PinnedPackage("a", "1", DIGEST), PinnedPackage("b", "2", DIGEST)))
    text = Lock(FILE, (section,)).text()
    for pin in parse_lock(text, FILE).sections[0].packages:
        assert text.splitlines()[pin.line - 1].startswith(f"{pin.name}==")


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.13.0",
        f"torch>=2 --hash=sha256:{DIGEST}",
        f"torch==1 --hash=md5:{DIGEST}",
        f"--extra-index-url https://elsewhere.example\ntorch==1 --hash=sha256:{DIGEST}",
        f"torch @ file:///etc/passwd --hash=sha256:{DIGEST}",
        f"libx=1 --hash=sha256:{DIGEST}",
        f"libx==1 libx.deb --hash=sha256:{DIGEST}",
        f"torch==1 --hash=sha256:{DIGEST} --config-settings=x",
        "<<<<<<< HEAD",
    ],
)
def test_a_line_that_is_no_exact_pin_is_refused_with_its_place(line: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_lock(f"# image: i\n# asked: torch\n{line}\n", FILE)
    assert str(refused.value).startswith(f"{FILE}:3")
    assert "envmatrix lock" in refused.value.remedy


def test_a_lock_made_for_other_requirements_does_not_serve() -> None:
    lock = Lock(
        FILE, (Section("image", "torch", "torch==2.13.0 ; numpy", (PinnedPackage("torch", "2.13.0", DIGEST),)),)
    )
    assert lock.find("image", "torch", request_text(["torch==2.13.0", "numpy"]))
    assert lock.find("image", "torch", request_text(["torch==2.14.1", "numpy"])) is None
    assert lock.find("image", "other", request_text(["torch==2.13.0", "numpy"])) is None
