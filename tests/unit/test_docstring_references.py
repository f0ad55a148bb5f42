"""What docstrings and comments name as ``module.name`` or ``Class.name`` exists: renames have left stale ones."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for name in ("bench", "envmatrix") for path in sorted((ROOT / name).rglob("*.py")) if "_project" not in path.parts
}  # fmt: skip
REFERENCE = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?``")
#: The first words of what belongs to others (PyTorch, Docker, Linux, ...) or is an argument's attribute.
OTHERS = {
    "arguments", "best", "cgroup", "dataset", "evidence", "images", "mounts", "nn", "os", "place", "record", "result",
    "scipy", "summary", "sys", "timing",
}  # fmt: skip


def names_in(source: str) -> set[str]:
    return {
        name for node in ast.walk(ast.parse(source))
        if (name := getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "attr", None))
    }  # fmt: skip


def test_a_name_in_double_backquotes_is_one_that_there_is():
    defined = defaultdict(set)  # module or class -> names in it; folder -> its modules
    for path, source in SOURCES.items():
        defined[path.parent.name if path.stem == "__init__" else path.stem] |= names_in(source)
        defined[path.parent.name].add(path.stem)
        defined[path.parent.parent.name].add(path.parent.name)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                defined[node.name] |= names_in(ast.unparse(node))
    stale = [
        f"{path.relative_to(ROOT)}: {reference}"
        for path, source in SOURCES.items()
        for reference in REFERENCE.findall(source)
        if (words := reference.split("."))[0] not in OTHERS and words[-1] not in ("py", "yaml", "txt")
        and words[-1] not in defined[words[-2]]
    ]  # fmt: skip
    assert stale == []
