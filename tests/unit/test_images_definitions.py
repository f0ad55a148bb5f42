"""Generated Dockerfiles and definitions: readable, and no value of matrix.yaml can escape its quotes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.build.images.definitions import (
    APPTAINER,
    DOCKER,
    DefinitionFormat,
    apptainer_quote,
    docker_quote,
    environment_variables,
    image_definition,
    named_definition,
    unfilled_variables,
)
from envmatrix.build.images.labels import REVISION, SOURCE, publisher_labels, url_without_credentials
from envmatrix.errors import InputError
from envmatrix.plan.environment import Environment, Image
from envmatrix.version import __version__

printable = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=40)


def by_hand(form: DefinitionFormat, environment: Environment) -> str:
    image = Image("torch", requirements=("torch==2.13.0",))
    return image_definition(form, image, "debian:bookworm-slim@sha256:00", environment, by_hand=True)


def environment(variables: dict[str, str | None], preload: tuple[tuple[str, str], ...] = ()) -> Environment:
    return Environment("intel-omp", "Intel's OpenMP", {"openmp": "intel"}, Image("torch"), variables, preload, {})


def undocker(quoted: str) -> str:
    r"""Unquote a double-quoted word like a Dockerfile: a backslash before \, " or $ yields that character."""
    body, out = iter(quoted[1:-1]), ""
    for character in body:
        assert character not in '"$', f"{quoted} ends early or expands"
        out += next(body) if character == "\\" else character
    return out


@given(printable)
def test_a_value_in_a_dockerfile_reads_back_as_written(value: str) -> None:
    assert undocker(docker_quote(value)) == value


@given(printable.map(lambda text: text.replace("'", "")))
def test_a_value_in_a_definition_is_one_shell_word_and_no_build_argument(value: str) -> None:
    quoted = apptainer_quote(value)
    assert shlex.split(quoted) == [value]
    assert "{{" not in quoted


@pytest.mark.parametrize("value", ["$(touch /tmp/owned)", "`id`", '"; id; "', "$HOME", "a{{ FROM }}b", "\\"])
def test_a_real_shell_hands_over_hostile_values_unchanged(value: str) -> None:
    script = f"export X={apptainer_quote(value)}; exec printenv X"
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout == value + "\n"


@pytest.mark.parametrize("value", ["a\nRUN id", "a\r", "\x00", "\x7f"])
def test_a_value_that_would_start_a_new_line_is_refused(value: str) -> None:
    for quote in (docker_quote, apptainer_quote):
        with pytest.raises(InputError, match="control character"):
            quote(value)


def test_every_value_stands_in_quotes_in_both_forms() -> None:
    hostile = environment({"A": '$(id) `id` "'}, (("k", "lib x.so"),))
    docker = named_definition(DOCKER, hostile, "parent:1", {"source": 'x" y=$z'}).splitlines()
    assert docker == [
        "FROM parent:1",
        'ENV A="\\$(id) `id` \\""',
        'ENV LD_PRELOAD="/opt/envmatrix/lib/k/lib x.so"',
        'ENV BENCH_VARIABLES="A"',
        'LABEL org.envmatrix.levels="{\\"openmp\\": \\"intel\\"}" \\',
        '      org.opencontainers.image.description="Intel\'s OpenMP" \\',
        '      org.opencontainers.image.title="envmatrix/intel-omp" \\',
        f'      org.opencontainers.image.version="{__version__}" \\',
        '      source="x\\" y=\\$z"',
    ]
    definition = named_definition(APPTAINER, hostile, "/c/image.sif", {"source": "t"}).splitlines()
    assert "    export A='$(id) `id` \"'" in definition
    assert definition[:2] == ["Bootstrap: localimage", "From: /c/image.sif"]


@pytest.mark.parametrize("form", [DOCKER, APPTAINER])
def test_an_image_that_an_older_version_built_is_named_with_this_version(form: DefinitionFormat) -> None:
    text = named_definition(form, environment({}), "p", {})
    [line] = [line for line in text.splitlines() if "image.version" in line]
    assert __version__ in line


def test_a_named_dockerfile_adds_metadata_and_no_layer() -> None:
    text = named_definition(DOCKER, environment({"A": "1"}), "p", {"l": "v"}).replace("\\\n", "")
    assert {line.split()[0] for line in text.splitlines()} == {"FROM", "ENV", "LABEL"}


def test_a_value_that_depends_on_the_machine_is_left_to_the_user_and_said() -> None:
    book = environment({"OMP_NUM_THREADS": "{physical_cores}", "OMP_PLACES": "{0:2}", "ABSENT": None})
    assert environment_variables(book) == {"OMP_PLACES": "{0:2}"}
    assert unfilled_variables(book) == {"OMP_NUM_THREADS": "{physical_cores}"}
    assert "--env OMP_NUM_THREADS={physical_cores}" in by_hand(DOCKER, book)
    assert "--env OMP_NUM_THREADS={physical_cores}" in by_hand(APPTAINER, book)


def test_a_whole_dockerfile_ends_as_an_ordinary_user_that_runs_the_benchmark() -> None:
    lines = by_hand(DOCKER, environment({"A": "1"})).splitlines()
    start = lines.index("WORKDIR /work")
    entry = 'ENTRYPOINT ["env", "PYTHONSAFEPATH=1", "python3", "-m", "bench"]'
    assert lines[start + 1 : start + 3] == ["USER 65532:65532", entry]
    assert lines.count("FROM scratch") == 1
    assert 'ENV A="1"' in lines


def test_a_dockerfile_and_a_definition_give_an_image_the_same_labels() -> None:
    made = environment({"A": "1"})
    docker = by_hand(DOCKER, made).partition("LABEL org.envmatrix.bench")[2]
    apptainer = by_hand(APPTAINER, made).partition("%labels\n")[2].partition("\n\n")[0]
    pairs = [line.strip().partition(" ")[::2] for line in apptainer.splitlines()]
    said = {name: re.sub(r"\{\{ (\w+) \}\}", r"${\1}", value) for name, value in pairs}
    text = f"org.envmatrix.bench{docker}".replace("\\\n", "")
    assert dict(word.partition("=")[::2] for word in shlex.split(text)) == said
    named = {"title", "description", "version", "created", "licenses", "source", "revision", "base.name", "base.digest"}
    assert {f"org.opencontainers.image.{name}" for name in named} <= set(said)
    assert said["org.opencontainers.image.created"] == "2025-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("https://user:secret@host.example:8443/a/b.git?token=secret", "https://host.example:8443/a/b.git"),
        ("ssh://git@host.example/a/b.git", "ssh://host.example/a/b.git"),
        ("git@host.example:a/b.git", "git@host.example:a/b.git"),
        ("/home/somebody/b", ""),
        ("file:///home/somebody/b", ""),
        ("../b", ""),
        ("", ""),
    ],
)
def test_where_an_image_comes_from_is_an_address_without_secrets(written: str, shown: str) -> None:
    assert url_without_credentials(written) == shown


def test_revision_and_source_are_those_of_the_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        argv = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    git("remote", "add", "origin", "https://user:secret@host.example/a/b.git")
    (tmp_path / "matrix.yaml").write_text("one")
    git("add", "matrix.yaml")
    git("commit", "--quiet", "--message", "one")
    found = publisher_labels(tmp_path / "containers")
    assert found == {SOURCE: "https://host.example/a/b.git", REVISION: git("rev-parse", "HEAD")}
    (tmp_path / "matrix.yaml").write_text("two")
    assert publisher_labels(tmp_path)[REVISION] == git("rev-parse", "HEAD") + "-dirty"


def test_what_is_in_no_checkout_has_no_revision(tmp_path: Path) -> None:
    assert publisher_labels(tmp_path / "absent") == {SOURCE: "", REVISION: ""}


def test_the_steps_of_a_build_hold_no_value_of_the_user() -> None:
    one = by_hand(DOCKER, environment({"A": "1"}))
    two = by_hand(DOCKER, environment({"A": "2; rm -rf /"}))
    steps = [[line for line in text.splitlines() if line.startswith(("RUN", " &&", "COPY"))] for text in (one, two)]
    assert steps[0] == steps[1]


def test_a_single_quote_is_refused_where_apptainer_would_change_it() -> None:
    with pytest.raises(InputError, match="single quote"):
        apptainer_quote("it's")
