"""Fuzzing: for any content of a matrix or a run's folder, a command gives an answer or one message, never a bug.

ENVMATRIX_FUZZ=N tries N random examples of each kind; the default is 2,000, always the same. Tests that run trials use
an eightieth of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envmatrix.__main__ import main
from envmatrix.api import runs
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.parse import MatrixError, parse
from envmatrix.results import RunFolder
from envmatrix.runner.progress import LineProgress
from envmatrix.stats.measurements import read_measurements
from envmatrix.system.progress import silent
from envmatrix.trials.new_run_options import NewRun
from tests.synthetic import Machine, make_plan, write_run
from tests.unit.test_extensions import MATRIX, PLUGINS

EXAMPLES = int(os.environ.get("ENVMATRIX_FUZZ", "2000"))
ROOT = Path(__file__).parents[2]
#: Values that have the wrong type, are too large, or have a special meaning somewhere.
ODD = ("", "-1", "1e999", "[]", "{}", "null", "true", '"{{x}}"', '"--help"', '"a\\nb"', '"\\ud83c"', "&a [*a]", "*a",
       "!!x y",       "0-99999", "NaN", "'\x7f'", "<<: 1", "?", "../..", "99999999999999999999",
       '"\\u0000"', "https://a:b@c")  # fmt: skip
#: Matrices with one thing of each kind, in small parts: reading YAML takes most of an example's time.
LEVELS = """version: 2
factors:
  malloc: {glibc: {claims: {malloc: libc}}, jemalloc: {apt: libjemalloc2, preload: libjemalloc.so.2}}
  torch: {a: {python: "3.11", requirements: [torch==2.13.0], index: "https://h/s"}, b: {suite: sid, apt: python3-torch}}
  place: {none: {}, last: {cpus: "{last_cpu}", memory_nodes: "0", env: {A: b, C: null}}}
environments: {baseline: {}, tuned: {malloc: jemalloc, place: last}}
"""
WORKLOADS = """version: 2
factors: {m: {glibc: {}}}
environments: {baseline: {}}
defaults: {d: {batch_size: 64}}
workloads:
  cnn: {defaults: d, model: fashion-cnn}
  own: {command: [python, x.py], metric: {regex: "a(b)"}, check: [{regex: "c(d)", tolerance: 1%}]}
designs: {d: {workloads: [cnn, own]}}
"""
DESIGNS = """version: 2
factors: {malloc: {glibc: {}, jemalloc: {apt: libjemalloc2}}}
environments: {baseline: {}, tuned: {malloc: jemalloc}}
workloads: {cnn: {model: fashion-cnn}}
designs:
  one: {environments: [tuned], workloads: cnn, target: 3%, budget: 5m, memory: 8GiB, slurm: {nodes: 2}}
  two: {factors: {malloc: [glibc, jemalloc]}, workloads: [cnn], min_blocks: 2}
"""
_WORD = re.compile(r"\"[^\"\n]*\"|[\w.=%-]+")

#: A requested number of examples may take any time.
pytestmark = pytest.mark.timeout(0)
unhurried = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize="ENVMATRIX_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@st.composite
def mutated(draw, text, odd=ODD, most=4):
    """Replace a few words of a text by odd ones or by each other, cut out a part, or insert an odd character."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(chance.randint(1, most)):
        words = list(_WORD.finditer(text))
        one, other = chance.choice(words), chance.choice(words)
        how = chance.randrange(10)
        if how < 6:
            text = text[: one.start()] + chance.choice(odd) + text[one.end() :]
        elif how < 8:
            text = text[: one.start()] + other[0] + text[one.end() :]
        elif how == 8:
            text = text[: one.start()] + text[max(one.end(), min(other.start(), one.end() + 40)) :]
        else:
            text = text[: one.end()] + chance.choice("[]{},:\"'#&*\n\t\0\ud800é") + text[one.end() :]
    return text


@unhurried
@given(st.sampled_from([LEVELS, WORKLOADS, DESIGNS]).flatmap(mutated))
def test_every_mistake_in_a_matrix_has_its_place(text):
    try:
        parse(text, ROOT / "m.yaml")
    except MatrixError as error:
        mistakes = error.mistakes
    except EnvmatrixError as error:
        mistakes = [error]
    else:
        return
    assert mistakes
    for mistake in mistakes:
        assert mistake.where is not None, mistake
        assert mistake.where.line, mistake


RUN_ODD = ("[]", "{}", "null", "true", '"12"', "-1", "1e999", "NaN", "9" * 400, '"\\ud800"', '"x"', "[[[]]]", "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("fuzz") / "run", make_plan(("a",)), Machine({"a": 1.2}), 2)
    return folder.path


@unhurried
@given(st.data())
def test_a_damaged_run_is_read_or_refused_with_its_place(whole, data):
    copy = whole.parent / "copy"
    copy.mkdir(exist_ok=True)
    name = data.draw(st.sampled_from(["run.json", "trials.jsonl", "history.jsonl"]))
    for file in ("run.json", "trials.jsonl"):
        shutil.copyfile(whole / file, copy / file)
    (copy / "history.jsonl").write_text('{"schema":2,"at":"x","envmatrix":"0","budget":600.0,"was":{"budget":"300"}}\n')
    lines = (copy / name).read_text().split("\n")
    at = data.draw(st.integers(0, max(0, len(lines) - 2)))
    body = "\n".join(lines) if name == "run.json" else lines[at]
    changed = data.draw(mutated(body, RUN_ODD, most=3))
    text = changed if name == "run.json" else "\n".join([*lines[:at], changed, *lines[at + 1 :]])
    (copy / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    error = refusal(RunFolder(copy))
    assert error is None or (error.where and error.where.file.parent == copy), error


def refusal(folder):
    """Read a whole run; return the error, or None."""
    try:
        run = folder.load()
        read_measurements(folder, run.plan)
        for trial in folder.trials(run.plan):
            json.loads(trial.line())
    except EnvmatrixError as error:
        return error
    return None


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a project with a run of a program that does nothing, one block before its end."""
    place = tmp_path_factory.mktemp("resumed")
    (place / "program").mkdir()
    (place / "program" / "work.py").touch()
    text = MATRIX.replace("PROGRAM", "program").replace("{regex: 'speed: ([0-9.]+)', better: higher}", "{wall: true}")
    (place / "matrix.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("ENVMATRIX_CACHE", str(place / "cache"))
        patch.syspath_prepend(str(PLUGINS))
        assert main(["bench", "--name", "one", "--quiet"]) == 0
        one = place / "results" / "one"
        lines = (one / "trials.jsonl").read_text().splitlines(keepends=True)
        (one / "trials.jsonl").write_text("".join(lines[: len(lines) // 2]))
        yield place


class Once(LineProgress):
    """A user who presses Ctrl-C once one trial is on disk."""

    def trial_ended(self, trial):
        raise KeyboardInterrupt


@contextlib.contextmanager
def once(experiment):
    yield Once(experiment, quiet=True, tell=silent)


@settings(unhurried, max_examples=max(1, EXAMPLES // 80))
@given(st.data())
def test_a_damaged_run_is_resumed_or_refused_with_a_message(project, data):
    whole, copy = project / "results" / "one", project / "results" / "two"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    name = data.draw(st.sampled_from(["run.json", "trials.jsonl"]))
    changed = data.draw(mutated((copy / name).read_text(), RUN_ODD, most=3))
    (copy / name).write_bytes(changed.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(EnvmatrixError):  # an expected message; any other exception would be a bug
        runs.finish_run(runs.reopen_run("two", NewRun()), once)
