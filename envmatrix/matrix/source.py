"""YAML text into plain data that remembers where each key and value stands.

Every scalar stays the text the user wrote (an environment variable's ``no`` or ``1e3`` must arrive unchanged);
the field that takes it turns it into its type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from envmatrix.errors import InputError, Where

Key = tuple[str | int, ...]
_MOST_NODES = 200_000
_NULL = "tag:yaml.org,2002:null"


@dataclass
class Source:
    """Data read from ``file``. ``keys`` and ``values`` map a path to the mark of its key and its value."""

    file: Path
    data: Any = None
    keys: dict[Key, yaml.Mark] = field(default_factory=dict)
    values: dict[Key, yaml.Mark] = field(default_factory=dict)

    def where(self, path: Key, *, key: bool = False) -> Where:
        """Return the place of ``path``, or of its nearest enclosing entry that has one."""
        if key and path in self.keys:
            return _place(self.file, self.keys[path])
        for end in range(len(path), -1, -1):
            mark = self.values.get(path[:end]) or self.keys.get(path[:end])
            if mark:
                return _place(self.file, mark)
        return Where(self.file)


def _place(file: Path, mark: yaml.Mark | None) -> Where:
    return Where(file, mark.line + 1, mark.column + 1) if mark else Where(file)


def read_text(file: Path) -> str:
    """Read the file as UTF-8; an InputError says why it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            "there is no such file",
            where=Where(file),
            remedy="go to the folder of your matrix.yaml, or name it: --matrix FILE",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=Where(file)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=Where(file)) from error


def parse_yaml(text: str, file: Path) -> Source:
    """Parse ``text``; bad YAML, duplicate keys and endless aliases are InputErrors with their place."""
    source = Source(file)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        source.data = _Reader(source, loader).convert(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(f"this is not YAML: {error.problem or error.context}", where=_place(file, mark)) from error
    except yaml.YAMLError as error:
        raise InputError(f"this is not YAML: {error}", where=Where(file)) from error
    except RecursionError as error:
        raise InputError("nested too deeply", where=Where(file)) from error
    return source


class _Reader:
    def __init__(self, source: Source, loader: yaml.SafeLoader) -> None:
        self.source = source
        self.loader = loader
        self.count = 0
        self.open: list[int] = []

    def convert(self, node: yaml.Node, path: Key) -> Any:
        self.count += 1
        if self.count > _MOST_NODES or id(node) in self.open:
            raise InputError("aliases make this endless", where=_place(self.source.file, node.start_mark))
        self.source.values[path] = node.start_mark
        self.open.append(id(node))
        try:
            return self._convert(node, path)
        finally:
            self.open.pop()

    def _convert(self, node: yaml.Node, path: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.convert(item, (*path, index)) for index, item in enumerate(node.value)]
        return None if node.tag == _NULL else node.value

    def _mapping(self, node: yaml.MappingNode, path: Key) -> dict[str, Any]:
        self._refuse_duplicates(node)
        self.loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InputError("a key must be one word", where=_place(self.source.file, key.start_mark))
            inner = (*path, key.value)
            self.source.keys[inner] = key.start_mark
            found[key.value] = self.convert(value, inner)
        return found

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise InputError(
                        f"{key.value!r} is here twice (first in line {seen[key.value].line + 1})",
                        where=_place(self.source.file, key.start_mark), remedy="keep one of them",
                    )  # fmt: skip
                seen[key.value] = key.start_mark
