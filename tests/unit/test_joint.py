"""The interface between host and benchmark: documents, arguments and variables only (docs/record.md)."""

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import arguments, code_digest, options, recorded_variables
from bench.command_line import _parser
from bench.errors import BenchError
from envmatrix.block.orphans import TRIAL_VARIABLE
from envmatrix.errors import InputError
from envmatrix.matrix import parse
from envmatrix.matrix.model import Workload
from envmatrix.system import bench_options, resource_paths, shared_bench_modules
from envmatrix.trials.execution import base_variables, bench_arguments
from envmatrix.trials.user_program.invocation import python_arguments
from tests.toy_nets import lay_out_toy

ROOT = Path(__file__).parents[2]
OPTIONS = options.listed()
HOST = sorted((ROOT / "envmatrix").rglob("*.py"))


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_only_one_module_of_the_host_loads_files_of_the_benchmark():
    loading = [file.name for file in HOST if "spec_from_file_location" in file.read_text()]
    assert loading == ["shared_bench_modules.py"]


@pytest.mark.parametrize("name", shared_bench_modules._NAMES)
def test_what_the_host_loads_needs_the_standard_library_alone(name):
    for module in imported(ROOT / "bench" / f"{name}.py"):
        assert module.partition(".")[0] in sys.stdlib_module_names, module


@pytest.mark.parametrize("name", shared_bench_modules._NAMES)
def test_the_hosts_typed_face_is_the_benchmarks_own(name):
    """Each function has the same parameters on both sides, and each of the other names is there."""
    face, module = get_type_hints(shared_bench_modules)[name], getattr(shared_bench_modules, name)
    faced = [entry for entry in (*vars(face), *face.__annotations__) if not entry.startswith("_")]
    assert faced
    for entry in faced:
        theirs, ours = getattr(module, entry), getattr(face, entry, None)
        if inspect.isfunction(ours):
            assert list(inspect.signature(ours).parameters)[1:] == list(inspect.signature(theirs).parameters), entry


def test_what_the_benchmark_returns_has_what_the_host_reads():
    (field,) = shared_bench_modules.number_parser.fields("rate: 1,234.5 img/s")
    assert all(hasattr(field, entry) for entry in shared_bench_modules.NumberField.__annotations__)
    assert all(hasattr(field.unit, entry) for entry in shared_bench_modules.Unit.__annotations__)


def test_both_sides_give_the_benchmark_the_same_digest():
    assert bench_options.folder_digest(resource_paths.bench_folder()) == code_digest.bench_digest()


def told(heading):
    """Return the words in backquotes under one heading of docs/record.md about the shared interface."""
    page = (ROOT / "docs" / "record.md").read_text()
    return set(re.findall(r"`([^`]+)`", page.split(heading, 1)[1].split("\n\n", 1)[0]))


ARGUMENTS = {
    line.split("`")[1]: set(re.findall(r"`(--[a-z-]+)`", line))
    for line in (ROOT / "docs" / "record.md")
    .read_text()
    .partition("**Arguments**")[2]
    .partition("**Variables**")[0]
    .splitlines()
    if re.match(r"\| `\w+` \|", line)
}


def flags(argv):
    words = argv[: argv.index("--")] if "--" in argv else argv
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def texts(file):
    """Return every string constant of a Python file."""
    found = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
    return [value for value in found if isinstance(value, str)]


def test_the_host_uses_the_arguments_of_the_page_and_no_others():
    metrics = [
        {"wall": True}, {"regex": "(x)", "better": "higher", "unit": "ms"},
        {"json_file": "out.json:a.b", "better": "lower"}, {"steps": "^x"},
    ]  # fmt: skip
    reported = [
        *({"metric": metric} for metric in metrics),
        {
            "prepare": ["true"],
            "metrics": {"a": metrics[0], "b": metrics[1]},
            "check": [{"regex": "(x)", "tolerance": 0}],
        },
    ]
    own = [
        python_arguments(
            Workload.model_validate({"name": "w", "command": ["python", "p.py"], **numbers}), "/r", "python3", "/b"
        )
        for numbers in reported
    ]
    assert set().union(*map(flags, own)) == ARGUMENTS["command"]
    plain = flags(bench_arguments(Workload(name="w"), {"work": "/w", "data": "/d"}, "python3", gate=True, look_s=10.0))
    over_nodes = set(re.findall(r"--(?:node-\w+|meet)", (ROOT / "envmatrix/block/srun.py").read_text()))
    assert plain | over_nodes == ARGUMENTS["run"]
    assert {"--record=", "evidence"} <= {
        text.rpartition("{")[0] or text for text in texts(ROOT / "envmatrix/trials/environment_for_commands.py")
    }
    assert {
        text[:-1] for text in texts(ROOT / "envmatrix/trials/data_preparation.py") if text.startswith("--")
    } == ARGUMENTS["data"]


def test_the_benchmark_takes_every_argument_of_the_page():
    commands = next(action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    assert set(commands) == set(ARGUMENTS)
    for name, named in ARGUMENTS.items():
        known = {text for action in commands[name]._actions for text in action.option_strings}
        assert named <= known


def test_the_host_sets_the_variables_of_the_page_and_no_others():
    assert set(base_variables("/work", "/bench", "/python")) | {
        "ENVMATRIX_PAD",
        TRIAL_VARIABLE,
        recorded_variables.NAMES,
        "BENCH_PACKAGES",
    } == {word for word in told("**Variables** that the host sets") if word.isupper()}


def variables_of(tree, constants):
    """Yield the names that a syntax tree reads from os.environ."""
    for node in ast.walk(tree):
        asked = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "environ" in ast.unparse(node.func):
            asked = node.args[:1]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            asked = [node.slice]
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            asked = [node.left]
        for name in asked:
            if isinstance(name, ast.Constant):
                yield name.value
            else:
                yield constants.get(ast.unparse(name).rpartition(".")[2])


def test_the_benchmark_acts_on_the_variables_of_the_page_and_no_others():
    trees = [
        ast.parse(file.read_text())
        for file in sorted((ROOT / "bench").rglob("*.py"))
        if file.parent.name != "evidence"  # it records all variables that are set
    ]
    assigned = [node for tree in trees for node in tree.body if isinstance(node, ast.Assign)]
    constants = {
        node.targets[0].id: node.value.value
        for node in assigned
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
    }
    found = {name for tree in trees for name in variables_of(tree, constants) if name}
    assert found == {word for word in told("**Variables** that `bench/` acts on") if word.isupper()}


def test_the_answer_of_the_data_command_is_the_one_of_the_page(tmp_path):
    argv = [sys.executable, "-m", "bench", "data", "--offline", f"--data-dir={tmp_path}", "--data=cifar10"]
    (line,) = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    page = (ROOT / "docs" / "record.md").read_text().split("`data` prints one JSON line: `{", 1)[1].split("}", 1)[0]
    assert list(json.loads(line)) == re.findall(r'"(\w+)"', page)


def by_hand(name, text):
    """Return an option's value as ``python -m bench run`` parses it, or the error message."""
    try:
        return arguments.from_texts({name: text})[name]
    except BenchError as error:
        return str(error).split(" ", 1)[1]


def by_matrix(name, text):
    try:
        value = bench_options.convert(name, text)
    except bench_options.WrongValueError as error:
        return f"{error.message}: {error.remedy}" if error.remedy else error.message
    broken = bench_options.broken_rules({name: value})
    return "; ".join(rule.message for rule in broken).split(" ", 1)[1] if broken else value


@pytest.mark.parametrize("name", OPTIONS)
@given(
    text=st.one_of(st.text(max_size=12), st.sampled_from(["1", "0", "yes", "on", "none", "null", "-1", "6,16", "nan"]))
)
def test_any_text_means_the_same_in_matrix_yaml_and_on_the_command_line(name, text):
    assert by_hand(name, text) == by_matrix(name, text)


@pytest.mark.parametrize("name", OPTIONS)
def test_what_the_host_writes_as_an_argument_is_read_as_the_same_value(name):
    option = bench_options.options()[name]
    for value in [option.default, *option.choices, *([[4, 8]] if option.type == "list-of-int" else [])]:
        (argument,) = bench_options.command_line_arguments({name: value})
        texts = vars(_parser().parse_args(["run", argument]))
        assert options.convert(OPTIONS[name], texts[name]) == value


def mistake(workload):
    with pytest.raises(InputError) as caught:
        parse.parse(f"version: 1\nworkloads:\n  w:\n{workload}", Path("m.yaml"))
    return str(caught.value)


def test_a_list_is_held_to_its_range_in_matrix_yaml_as_well():
    assert "widths: must be at least 1, not 0" in mistake("    model: mlp\n    widths: [8, 0]\n")


def test_every_broken_rule_is_told_at_the_option_that_breaks_it():
    said = mistake("    workers: 2\n    momentum: 0.5\n    optimizer: adam\n    widths: [1]\n")
    assert [line.split(": ")[0] for line in said.splitlines() if line.startswith("m.yaml")] == [
        "m.yaml:4:5", "m.yaml:6:5", "m.yaml:7:5",
    ]  # fmt: skip
    assert "here optimizer is" in said
    assert "change optimizer or momentum" in said


def test_an_installed_package_finds_the_benchmark_that_came_with_it(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "envmatrix", tmp_path / "envmatrix", ignore=ignored)
    shutil.copytree(ROOT / "bench", tmp_path / "envmatrix" / "_project" / "bench", ignore=ignored)
    asked = (
        "from envmatrix.system import bench_options as options, resource_paths;"
        " print(options.folder_digest(resource_paths.bench_folder()))"
    )
    said = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == code_digest.bench_digest()


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Install a package with a model, as an installer lays it out."""
    lay_out_toy(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_model_of_another_package_is_named_by_its_object_or_its_entry_point(toy):
    assert by_matrix("model", "toy_nets:small") == by_hand("model", "toy_nets:small") == "toy_nets:small"
    assert by_matrix("model", "toy-small") == by_hand("model", "toy-small") == "toy_nets:small"


def test_a_model_that_nobody_offers_is_refused_with_all_that_are_known(toy):
    said = mistake("    model: resnet1000000\n    bias: true\n")
    assert "m.yaml:4:12: model: cannot be 'resnet1000000'" in said
    near = mistake("    model: toy-smal\n")
    assert "did you mean toy-small?" in near
    far = mistake("    model: mine\n")
    assert "known: fashion-cnn, lenet5" in far
    assert "toy-small, or package.module:function" in far


def test_what_only_suits_built_in_models_is_left_to_the_others_own_builder(toy):
    assert by_matrix("model", "toy_nets:small") == "toy_nets:small"
    chosen = {"model": "toy_nets:small", "widths": [3], "extra_layer": True, "channels_last": True, "bias": False}
    assert bench_options.broken_rules(chosen) == []
