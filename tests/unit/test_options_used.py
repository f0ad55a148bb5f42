"""Every option of a command reaches something: types cannot check what ``console_io.call`` passes on by name."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from envmatrix import cli
from envmatrix.cli.command_table import COMMANDS, command_parser

#: Modules whose functions read options for several commands.
SHARED = ("progress_and_result", "shared_options")


def called(tree: ast.Module) -> Iterator[object]:
    """Yield the functions and classes that a module calls by ``console_io.call``."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {name.asname or name.name: (node.module, name.name) for node in imports for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "console_io.call":
            first, *attributes = ast.unparse(node.args[0]).split(".")
            module, name = modules[first]
            found = getattr(importlib.import_module(module), name, None) or importlib.import_module(f"{module}.{name}")
            for attribute in attributes:
                found = getattr(found, attribute)
            yield found


def used(module: str) -> set[str]:
    """Return the options that a module reads, and the parameters of what it calls with all options."""
    tree = ast.parse(Path(cli.__path__[0], f"{module}.py").read_text())
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("arguments", "options")
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"]
    read |= {ast.literal_eval(node.args[1]) for node in calls if isinstance(node.args[1], ast.Constant)}
    return read | {name for function in called(tree) for name in inspect.signature(function).parameters}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_reaches_something(command):
    options = {action.dest for action in command_parser(command)._actions} - {"help"}
    options -= {name for name in options if name.startswith("launcher_option_")}  # launching reads them by prefix
    assert options - used(command) - {name for module in SHARED for name in used(module)} == set()
