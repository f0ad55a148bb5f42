"""bench/ runs inside every environment, so its source must suit old Pythons and have no dependencies."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "bench").rglob("*.py"))
#: torch is what is measured; single workloads import torchvision, inside functions.
ALLOWED = {"torch", "torchvision", "bench"}
#: Each is needed by one option and imported in one file.
ALSO = {"model_compression.py": {"torchao"}, "horovod_strategy.py": {"horovod"}, "lightning_strategy.py": {"lightning"}}
#: Standard library modules that are newer than Python 3.9.
TOO_NEW = {"tomllib", "annotationlib", "compression"}
#: These run with the host's own Python, before any environment exists.
HOST_SIDE = {
    "__init__.py",
    "__main__.py",
    "command_line.py",
    "options.py",
    "data_sets.py",
    "stand_in_data.py",
    "code_digest.py",
    "recorded_variables.py",
    "errors.py",
}


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide what is imported"
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_bench_imports_only_the_standard_library_and_torch(file):
    for name in imports(ast.parse(file.read_text())):
        assert name in ALLOWED | ALSO.get(file.name, set()) or (
            name in sys.stdlib_module_names and name not in TOO_NEW
        ), name


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_bench_parses_as_python_3_9(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    assert not [node for node in ast.walk(tree) if type(node).__name__ in ("Match", "TryStar", "TypeAlias")]
    for function in ast.walk(tree):
        for note in getattr(function, "decorator_list", ()):
            assert "slots" not in ast.unparse(note), "dataclass(slots=) is Python 3.10"


@pytest.mark.parametrize("name", sorted(HOST_SIDE))
def test_what_the_host_runs_without_torch_imports_no_torch(name):
    tree = ast.parse((ROOT / "bench" / name).read_text())
    assert "torch" not in set(imports(tree))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_bench_files_and_functions_stay_short(file):
    text = file.read_text()
    assert text.count("\n") < 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 50, node.name
