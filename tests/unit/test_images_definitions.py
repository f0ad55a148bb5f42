"""Generated Dockerfiles and definitions: readable, and no value of matrix.yaml can leave its quotes."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.errors import InputError
from envmatrix.images.definitions import (
    Recipe,
    docker_quote,
    environment_variables,
    left_open,
    named_definition,
    named_dockerfile,
    shell_quote,
    whole_definition,
    whole_dockerfile,
)
from envmatrix.plan.environment import Environment, Image

printable = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=40)
RECIPE = Recipe("torch", "debian:bookworm-slim@sha256:00", wheels=True)


def environment(variables: dict[str, str | None], preload: tuple[tuple[str, str], ...] = ()) -> Environment:
    return Environment("intel-omp", "Intel's OpenMP", {"openmp": "intel"}, Image("torch"), variables, preload, {})


def undocker(quoted: str) -> str:
    """Read a double-quoted word as a Dockerfile does: a backslash before \\, \" or $ gives that character."""
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
    quoted = shell_quote(value)
    assert shlex.split(quoted) == [value]
    assert "{{" not in quoted


@pytest.mark.parametrize("value", ["$(touch /tmp/owned)", "`id`", '"; id; "', "$HOME", "a{{ FROM }}b", "\\"])
def test_a_real_shell_hands_over_hostile_values_unchanged(value: str) -> None:
    script = f"export X={shell_quote(value)}; exec printenv X"
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout == value + "\n"


@pytest.mark.parametrize("value", ["a\nRUN id", "a\r", "\x00", "\x7f"])
def test_a_value_that_would_start_a_new_line_is_refused(value: str) -> None:
    for quote in (docker_quote, shell_quote):
        with pytest.raises(InputError, match="control character"):
            quote(value)


def test_every_value_stands_in_quotes_in_both_forms() -> None:
    hostile = environment({"A": '$(id) `id` "'}, (("k", "lib x.so"),))
    docker = named_dockerfile(hostile, "parent:1", {"title": 'x" y=$z'}).splitlines()
    assert docker == [
        "FROM parent:1",
        'ENV A="\\$(id) `id` \\""',
        'ENV LD_PRELOAD="/opt/envmatrix/lib/k/lib x.so"',
        'ENV BENCH_VARIABLES="A"',
        'LABEL title="x\\" y=\\$z"',
    ]
    definition = named_definition(hostile, "/c/image.sif", {"title": "t"}).splitlines()
    assert "    export A='$(id) `id` \"'" in definition
    assert definition[:2] == ["Bootstrap: localimage", "From: /c/image.sif"]


def test_a_named_dockerfile_adds_metadata_and_no_layer() -> None:
    words = {line.split()[0] for line in named_dockerfile(environment({"A": "1"}), "p", {"l": "v"}).splitlines()}
    assert words == {"FROM", "ENV", "LABEL"}


def test_a_value_that_depends_on_the_machine_is_left_to_the_user_and_said() -> None:
    book = environment({"OMP_NUM_THREADS": "{physical_cores}", "OMP_PLACES": "{0:2}", "ABSENT": None})
    assert environment_variables(book, {}) == {"OMP_PLACES": "{0:2}"}
    assert left_open(book) == {"OMP_NUM_THREADS": "{physical_cores}"}
    assert "--env OMP_NUM_THREADS={physical_cores}" in whole_dockerfile(book, RECIPE)
    assert "--env OMP_NUM_THREADS={physical_cores}" in whole_definition(book, RECIPE)


def test_a_whole_dockerfile_ends_as_an_ordinary_user_that_runs_the_benchmark() -> None:
    lines = whole_dockerfile(environment({"A": "1"}), RECIPE).splitlines()
    assert lines[-3:] == ["WORKDIR /work", "USER 65532:65532", 'CMD ["python3", "-m", "bench"]']
    assert lines.count("FROM scratch") == 1
    assert 'ENV A="1"' in lines


def test_the_steps_of_a_build_hold_no_value_of_the_user() -> None:
    one = whole_dockerfile(environment({"A": "1"}), RECIPE)
    two = whole_dockerfile(environment({"A": "2; rm -rf /"}), RECIPE)
    steps = [[line for line in text.splitlines() if line.startswith(("RUN", " &&", "COPY"))] for text in (one, two)]
    assert steps[0] == steps[1]


def test_a_single_quote_is_refused_where_apptainer_would_change_it() -> None:
    with pytest.raises(InputError, match="single quote"):
        shell_quote("it's")
