"""The published JSON Schema agrees with `check` about a matrix."""

from __future__ import annotations

import copy
import json
import re
import textwrap
from pathlib import Path

import pytest
import yaml

from envmatrix.errors import InputError
from envmatrix.matrix.include import LIBRARY_FOLDER, SECTIONS, read_includes
from envmatrix.matrix.parse import _Parser, parse
from envmatrix.matrix.schema import json_schema
from envmatrix.matrix.yaml_positions import parse_yaml
from envmatrix.system.resource_paths import bundled_matrix_file
from tests.held_schema import refusal

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def examples():
    """Yield every matrix, or part of one, that a page shows, with its place."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        shown += [textwrap.dedent(part) for part in re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)]
        for number, part in enumerate(shown):
            begins = re.match(rf"\s*(?:#.*\s*)*(version|{'|'.join(SECTIONS)}):", part)
            if begins and "..." not in part:
                body = part if re.search("^version:", part, re.MULTILINE) else f"version: 2\n{part}"
                yield pytest.param(body, id=f"{page.relative_to(PROJECT)}-{number}")


def test_the_committed_schema_is_up_to_date():
    committed = json.loads((PROJECT / "docs" / "matrix.schema.json").read_text())
    assert committed == json_schema(), "run: envmatrix schema > docs/matrix.schema.json"


@pytest.mark.parametrize(
    "file", [bundled_matrix_file(), *sorted(LIBRARY_FOLDER.glob("*.yaml")), *(PROJECT.glob("examples/*/*.yaml"))]
)
def test_the_schema_accepts_what_comes_with_envmatrix(file):
    assert refusal(file.read_text()) == ""


@pytest.mark.parametrize("text", list(examples()))
def test_the_schema_accepts_every_example_of_the_pages(text):
    assert refusal(text) == ""


def test_there_are_examples_of_every_section():
    found = "\n".join(str(one.values[0]) for one in examples())
    assert len(list(examples())) > 15
    assert [kind for kind in SECTIONS if f"\n{kind}:" not in found] == []


#: An entry of every kind with every key; each is used as a matrix of its own.
WHOLE = """
- factors: {malloc: {plain: {}, tuned: {description: a, env: {A: '1', B: null}, preload: [liba.so], cpus: 0-1,
    memory_nodes: '0', cpu_quota: 1.5, srun: [--cpu-bind=cores], claims: {malloc: [libc], threads: 1},
    requires: {malloc: [plain]}, changes_numerics: true, turns: false, apt: [libjemalloc2]}}}
- factors: {python: {built: {python: 3.11, requirements: [x==1.0], index: "https://a.b", suite: bookworm,
    build: {x: {env: {C: d}, edit: {a.txt: {b: c}}, programs: [gcc]}}}}}
- factors: {python: {image: {image: 'a/b:c'}, own: {interpreter: /a/b}, based: {base: 'a@sha256:b'},
    conda: {conda: [python=3.11], channels: [conda-forge]}, modules: {modules: [a/1]}}}
- environments: {baseline: {}, fast: {malloc: tuned, description: words}}
- {defaults: {d: {batch_size: 4}}, workloads: {cnn: {defaults: d, model: mlp, bias: false, momentum: 0.1, steps: 3,
    widths: [8, 4], description: b}}}
- workloads: {mine: {command: [python, a.py], metric: {regex: 'x (1)', better: lower, unit: s},
    check: [{regex: 'l (1)', tolerance: 5%, name: loss}], files: ., env: {A: b}, pass_env: [C], home: real,
    setup: [a], prepare: [b], cleanup: [c], mounts: [/data]}}
- workloads: {steps: {command: python a.py, metrics: {s: {steps: x, warmup: 2}, t: {json_file: 'a:b'}}}}
- workloads: {wall: {command: python a.py, metric: {wall: true}, check: {json_file: 'a:b', tolerance: 0}}}
- designs: {d: {description: e, environments: [fast], workloads: [mine], reference_values: {fast: 2x}, engines: [local],
    baseline: baseline, target: 3%, margin: 0.03, budget: 5m, claims_first: true, trial_limit: 60, min_blocks: 4,
    max_blocks: 9, seed: 1, schedule: turns, turn: 2, turn_apart: 1, steady: true, race: false, cpus: 0-1}}
- designs: {f: {factors: {malloc: [plain, tuned]}, workloads: cnn, application: [mine], memory: 1GiB, shm: 1GiB,
    gpus: [0], slurm: {nodes: 2, partition: p, account: a, constraint: c, nodelist: [n1], time: 1h, memory: 2GiB,
    gpus: 2, modules: [m], busy: 5%, options: [--qos=high]}}}
- designs: {c: {cumulative: [fast], workloads: cnn}}
"""
VALUES = (None, "", "x", "1", "yes", "none", 0, 1, -1, 1.5, True, [], ["x"], {}, {"a": "b"}, [None])


def places(node, path=()):
    yield path
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(inner, (*path, key))


def with_value(whole, path, value):
    changed = copy.deepcopy(whole)
    entry = changed
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    return yaml.dump({"version": 2, **changed}, Dumper=yaml.CSafeDumper, sort_keys=False)


def accepted(text):
    """Return whether `check` accepts every entry of a matrix, without resolving names of other entries."""
    try:
        reader = _Parser(read_includes(parse_yaml(text, Path("m.yaml"))))
        return reader.matrix() is not None
    except InputError:
        return False


@pytest.mark.parametrize("whole", yaml.safe_load(WHOLE), ids=lambda whole: "-".join(next(iter(whole.values()))))
def test_the_schema_accepts_whatever_check_accepts(whole):
    """Replaces each value of each key by others, most of which are invalid."""
    assert accepted(yaml.dump({"version": 2, **whole}))
    tried = [with_value(whole, path, value) for path in places(whole) if path for value in VALUES]
    accepting = [text for text in tried if accepted(text)]
    assert accepting
    assert [(text, refusal(text)) for text in accepting if refusal(text)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"factors": {"a": {"b": {"prelaod": "x"}}}}, {"factors": {"a": ["b"]}}, {"factors": {"a": None}},
        {"factors": {"a": {"b": {"env": None}}}}, {"factors": {"a": {"b": {"claims": {"threads": []}}}}},
        {"factors": {"a": {"b": {"cpu_quota": "much"}}}}, {"factors": {"a": {"b": {"turns": "sometimes"}}}},
        {"version": 3}, {"version": None}, {"factor": {}}, {"environments": {"a": ["b"]}},
        {"designs": {"d": {}}}, {"designs": {"d": None}}, {"designs": {"d": {"workloads": []}}},
        {"designs": {"d": {"workloads": "w", "min_blocks": 1}}}, {"designs": {"d": {"workloads": "w", "seed": "x"}}},
        {"designs": {"d": {"workloads": "w", "target": "200%"}}}, {"designs": {"d": {"workloads": "w", "target": 3}}},
        {"designs": {"d": {"workloads": "w", "budget": "soon"}}}, {"designs": {"d": {"workloads": "w", "budget": 0}}},
        {"designs": {"d": {"workloads": "w", "memory": "much"}}},
        {"designs": {"d": {"workloads": "w", "slurm": {"nodes": 0}}}},
        {"workloads": {"w": {"command": "a", "metric": {"wall": True, "better": "bigger"}}}},
        {"workloads": {"w": {"command": "a", "metric": {}}}}, {"workloads": {"w": {"command": "a", "metric": None}}},
        {"workloads": {"w": {"command": "a", "metric": {"regex": "no group"}}}},
        {"workloads": {"w": {"command": "a", "check": {"regex": "(x)"}}}},
        {"workloads": {"w": {"command": "a", "check": {"json_file": "a", "tolerance": 0}}}},
        {"workloads": {"w": {"command": []}}}, {"workloads": {"w": {"batch_size": 0}}},
        {"workloads": {"w": {"batch_size": "many"}}}, {"workloads": {"w": {"bias": "perhaps"}}},
        {"workloads": {"w": {"loader": "dataloder"}}}, {"defaults": {"a": {}, "b": {"defaults": "a"}}},
    ],
)  # fmt: skip
def test_an_obvious_error_is_refused_by_both(wrong):
    text = yaml.dump({"version": 2, **wrong})
    assert refusal(text)
    with pytest.raises(InputError):
        parse(text, Path("m.yaml"))
