"""The package's folders import in one order; CONTRIBUTING.md's rules on imports and sizes hold everywhere.

Imports inside functions count like those at the top, and so do the ``package.module:Name`` entries of a catalog.
Imports only for type checkers do not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import pytest

from envmatrix.cli.command_table import COMMANDS

PACKAGE = Path(__file__).parents[2] / "envmatrix"
#: A folder may import from itself and from earlier lines, but not from others on its own line.
ORDER = [
    {"errors", "durations_and_sizes", "version", "block"},
    {"system"}, {"evidence"}, {"matrix"}, {"plan"}, {"results"}, {"build"},
    {"engines"}, {"stats"}, {"report"}, {"trials"}, {"launchers"}, {"runner"}, {"search"}, {"api"}, {"__init__"},
    {"cli"}, {"__main__"},
]  # fmt: skip
_TARGET = re.compile(r"(envmatrix(?:\.\w+)+):[\w.]+\Z")
LONGEST_FUNCTION, LONGEST_FILE, MOST_MODULES, MOST_ANY = 50, 400, 20, 60


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "_project" not in path.parts:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@lru_cache(maxsize=256)
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes that run: all except the bodies of ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from running(child)


@lru_cache(maxsize=512)
def imported(module: str, types: bool = False) -> tuple[tuple[str, bool], ...]:
    """Return imports as (module or other package, whether a catalog names it), with ``types`` also those for types."""
    found: dict[tuple[str, bool], None] = {}
    for node in ast.walk(tree(module)) if types else running(tree(module)):
        if isinstance(node, ast.Import):
            found |= dict.fromkeys((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found[whole if whole in modules() else str(node.module), False] = None
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := _TARGET.match(node.value)):
            found[match[1], True] = None
    return tuple(found)


def ours(module: str, types: bool = False) -> set[str]:
    return {name for name, by_catalog in imported(module, types) if name in modules() and not by_catalog}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def place(module: str) -> int:
    return next((number for number, rooms in enumerate(ORDER) if room(module) in rooms), -1)


def test_every_room_has_a_place_in_the_order():
    assert {room(module) for module in modules() if place(module) < 0} == set()


def test_a_room_imports_only_from_rooms_before_it():
    found = {
        (module, name) for module in modules() for name, _ in imported(module)
        if name in modules() and place(name) > place(module)
    }  # fmt: skip
    assert found == set()


def test_the_block_runner_needs_nothing_but_the_standard_library_of_an_old_python():
    names = {name for module in modules() if room(module) == "block" for name, _ in imported(module)}
    assert {name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, "envmatrix"}} == set()
    assert {name for name in names if name in modules() and room(name) != "block"} == {"envmatrix"} & names
    unions = {
        (module, node.lineno)
        for module in modules() if room(module) == "block"
        for statement in tree(module).body if isinstance(statement, ast.Assign)
        for node in ast.walk(statement) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    }  # fmt: skip
    assert unions == set(), "a union that is evaluated needs Python 3.10"


def test_no_module_imports_itself_by_way_of_others_not_even_for_types():
    assert list(circles({module: ours(module, types=True) for module in modules()})) == []


def folder(module: str) -> str:
    return modules()[module].parent.relative_to(PACKAGE).as_posix()


def test_no_sub_folder_imports_itself_by_way_of_others():
    found: dict[str, set[str]] = {}
    for module in modules():
        if "/" in folder(module):
            others = {folder(name) for name in ours(module) if "/" in folder(name)} - {folder(module)}
            found.setdefault(folder(module), set()).update(others)
    assert list(circles(found)) == []


def circles(imports: Mapping[str, set[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the groups of names that import each other in a cycle (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for name in sorted(imports[module]):
            if name not in number:
                visit(name)
                low[module] = min(low[module], low[name])
            elif name in stack:
                low[module] = min(low[module], number[name])
        if low[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1 or module in imports[module]:
                found.append(tuple(sorted(group)))

    for module in sorted(imports):
        if module not in number:
            visit(module)
    yield from found


def test_no_command_imports_another():
    prefix = "envmatrix.cli."
    commands = {prefix + name for name in COMMANDS}
    found = {
        (module.removeprefix(prefix), name.removeprefix(prefix))
        for module in commands for name in ours(module) & commands
    }  # fmt: skip
    assert found == set()


def test_only_the_command_line_knows_argparse():
    found = {
        module for module in modules()
        if room(module) != "cli" and "argparse" in modules()[module].read_text(encoding="utf-8")
    }  # fmt: skip
    assert found == set()


@pytest.mark.parametrize("package", ["torch", "torchvision", "bench"])
def test_the_host_never_imports_what_runs_inside(package):
    found = set()
    for module in modules():
        for node in ast.walk(tree(module)):  # what only type checkers read, too
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            found |= {(module, name) for name in names if name.split(".")[0] == package}
    assert found == set()


#: Defaults of documents and of the Python interface, the key ``slurm:`` of matrix.yaml, a made-up arm, a plain "here",
#: git's ssh, the program ssh on a command line.
NAMED = {
    ("envmatrix.matrix.model", "local"), ("envmatrix.results.run_model", "here"), ("envmatrix.matrix.parse", "slurm"),
    ("envmatrix.trials.new_run_options", "here"),
    ("envmatrix.cli.reproduce", "here"), ("envmatrix.api.reproduction_packs", "here"), ("envmatrix.api.runs", "here"),
    ("envmatrix.api.environment_exec_and_export", "local"), ("envmatrix.api.locks_and_images", "local"),
    ("envmatrix.trials.feasibility", "slurm"),  # whose srun a level may name
    ("envmatrix.build.images.labels", "ssh"), ("envmatrix.trials.user_program.command_line_check", "ssh"),
}  # fmt: skip


def test_engines_and_launchers_are_named_in_their_own_rooms_alone():
    from envmatrix.engines.catalog import ENGINES
    from envmatrix.launchers.catalog import LAUNCHERS

    names = {*ENGINES.built_in, *LAUNCHERS.built_in}
    found = {
        (module, node.value)
        for module in modules() if room(module) not in ("engines", "launchers")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }  # fmt: skip
    assert found <= NAMED


def test_functions_are_short():
    found = {
        f"{module}.{node.name}"
        for module in modules() for node in ast.walk(tree(module))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    }  # fmt: skip
    assert found == set()


def test_files_are_short():
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in modules().items()}
    assert {module: lines for module, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_folders_have_few_modules():
    count = Counter(folder(module) for module in modules())
    del count["cli"]  # one module per command
    assert {name: number for name, number in count.items() if number > MOST_MODULES} == {}


def test_what_can_be_typed_is():
    count = {
        module: sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree(module)))
        for module in modules()
    }
    assert sum(count.values()) < MOST_ANY, {module: number for module, number in count.items() if number}
