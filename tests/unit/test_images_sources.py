"""Building from source: the keys in matrix.yaml, and what a build can see of this machine."""

from __future__ import annotations

import io
import platform
import tarfile
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.package_locks import image_request_text
from envmatrix.build.python.pip import Pip, ResolveRequest
from envmatrix.build.python.source_builds import build_argv, build_variables, check_glibc, edit_source, unpack_source
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.matrix.parse import MatrixError, parse
from envmatrix.plan import environment as environments
from envmatrix.plan.environment import Environment, Image, SourceBuild

SOURCE = PinnedPackage("ext", "1.0", "a" * 64)
LEVEL = """
version: 1
factors:
  torch:
    plain: {requirements: [torch==2.13.0]}
    more:
      requirements: [torch==2.13.0, My_Ext==1.0]
      %s
environments:
  baseline: {}
  more: {torch: more}
workloads: {w: {model: mlp}}
designs: {d: {workloads: w}}
"""


def matrix(build: str) -> str:
    return LEVEL % build


def test_a_build_arrives_at_its_image_and_survives_run_json() -> None:
    text = "build: {my.ext: {env: {A: '1'}, edit: {a/b.txt: {old: \"new\\nline\"}}, programs: [cmake, g++]}}"
    found = parse(matrix(text), Path("matrix.yaml"))
    env = environments.resolve_environment(found, "more", {})
    build = SourceBuild("my-ext", (("A", "1"),), (("a/b.txt", "old", "new\nline"),), ("cmake", "g++"))
    assert env.image.builds == (build,)
    kept = TypeAdapter(Environment)
    assert kept.validate_json(kept.dump_json(env)) == env
    assert image_request_text(env.image) == "torch==2.13.0 ; My_Ext==1.0 ; --no-binary=my-ext"


@pytest.mark.parametrize(
    ("build", "place", "words"),
    [
        ("build: {other: {}}", "8:7", "other needs an exact version in the requirements: other==VERSION"),
        ("build: {my-ext: {evn: {}}}", "8:24", "did you mean 'env'?"),
        ("build: {my-ext: {env: {PATH: /x}}}", "8:", "PATH is set by envmatrix"),
        ('build: {my-ext: {env: {A: "x\\ny"}}}', "8:", "control characters"),
        ("build: {my-ext: {edit: {../b: {c: d}}}}", "8:", "must be a file inside the source distribution"),
        ("build: {my-ext: {edit: {/etc/b: {c: d}}}}", "8:", "must be a file inside the source distribution"),
        ("build: {my-ext: {edit: {b: c}}}", "8:34", "b: must contain `name: ...` entries"),
        ("build: {my-ext: {programs: [a/b]}}", "8:", "must be the name of a program"),
        ("build: {my-ext: {programs: [--version]}}", "8:", "must be the name of a program"),
        ("build: {my-ext: {}}\n      preload: libx.so", "8:7", "it has no effect with preload"),
    ],
)
def test_mistakes_in_a_build_are_named_with_their_place(build: str, place: str, words: str) -> None:
    with pytest.raises(MatrixError) as refused:
        parse(matrix(build), Path("matrix.yaml"))
    assert words in str(refused.value)
    assert f"matrix.yaml:{place}" in str(refused.value)


def test_pip_takes_the_source_of_what_is_built_and_wheels_of_all_else(tmp_path: Path) -> None:
    pip, request = Pip(("pip",)), ResolveRequest(("a==1", "ext==1"), sources=("ext",))
    argv = pip.resolve_argv(request, tmp_path / "report")
    assert argv.index("--no-binary=ext") > argv.index("--only-binary=:all:")
    argv = pip.download_argv(request, tmp_path / "r.txt", tmp_path)
    assert argv.index("--no-binary=ext") > argv.index("--only-binary=:all:")
    assert "--require-hashes" in argv
    plain = pip.download_argv(ResolveRequest(("a==1",)), tmp_path / "r.txt", tmp_path)
    assert not [word for word in plain if "no-binary" in word]


def test_a_build_knows_its_settings_and_nothing_else_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    monkeypatch.setenv("PIP_INDEX_URL", "https://elsewhere.example")
    settings = SourceBuild("ext", (("CXXFLAGS", "-O1"), ("SOURCE_DATE_EPOCH", "315619300"), ("X", "$(id)")))
    found = build_variables(settings, Path("/venv"), Path("/build/ext-1.0"), Path("/home"))
    assert found["CXXFLAGS"].startswith("-O1 -ffile-prefix-map=/build/ext-1.0=")
    assert "-ffile-prefix-map=/venv=" in found["CFLAGS"]
    assert found["X"] == "$(id)"
    assert found["SOURCE_DATE_EPOCH"] == "315619300"
    assert found["PATH"].startswith("/venv/bin:")
    assert "PIP_INDEX_URL" not in found
    argv = build_argv("uv", Path("/venv"), Path("/build/ext-1.0"), Path("/made"))
    assert {"--offline", "--no-build-isolation"} <= set(argv)


def archive(folder: Path, *members: tuple[str, bytes, str]) -> Path:
    """Write a .tar.gz of (name, type, body)."""
    with tarfile.open(folder / "ext-1.0.tar.gz", "w:gz") as tar:
        for name, kind, body in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, 0 if kind != tarfile.REGTYPE else len(body)
            member.linkname = "/etc/passwd"
            tar.addfile(member, io.BytesIO(body.encode()))
    return folder / "ext-1.0.tar.gz"


def test_texts_of_a_source_are_replaced_byte_for_byte(tmp_path: Path) -> None:
    body = "set(A 14)\r\n\nset(A 14)\n"
    folder = unpack_source(archive(tmp_path, ("ext-1.0/x.txt", tarfile.REGTYPE, body)), tmp_path / "out", SOURCE)
    edit_source(folder, "x.txt", "set(A 14)", "set(A 17)\nset(B)", SOURCE)
    assert (folder / "x.txt").read_bytes() == b"set(A 17)\nset(B)\r\n\nset(A 17)\nset(B)\n"


@pytest.mark.parametrize(
    "member",
    [
        ("../x", tarfile.REGTYPE, "x"),
        ("/tmp/x", tarfile.REGTYPE, "x"),
        ("ext-1.0/x", tarfile.SYMTYPE, ""),
        ("ext-1.0/x", tarfile.LNKTYPE, ""),
        ("ext-1.0/x", tarfile.FIFOTYPE, ""),
    ],
    ids=["above", "absolute", "link", "hard link", "pipe"],
)
def test_a_source_that_holds_anything_but_files_inside_it_is_refused(
    tmp_path: Path, member: tuple[str, bytes, str]
) -> None:
    file = archive(tmp_path, ("ext-1.0/good", tarfile.REGTYPE, "x"), member)
    with pytest.raises(EngineError, match="not a plain file inside it"):
        unpack_source(file, tmp_path / "out", SOURCE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("body", [b"", b"no archive", b"\x1f\x8b\x08\x00cut"])
def test_what_is_no_archive_is_one_clear_error(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "ext-1.0.tar.gz").write_bytes(body)
    with pytest.raises(EngineError, match="is not a valid source distribution"):
        unpack_source(tmp_path / "ext-1.0.tar.gz", tmp_path / "out", SOURCE)


def test_what_this_machine_links_is_not_put_under_an_older_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image("i", builds=(SourceBuild("ext"),))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.39"))
    with pytest.raises(SkipEnvironmentError, match=r"needs glibc 2\.39, and Debian bookworm has 2\.36"):
        check_glibc(image, "bookworm")
    check_glibc(image, "trixie")
    check_glibc(Image("i"), "bookworm")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    check_glibc(image, "bookworm")
