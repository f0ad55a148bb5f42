"""Parse YAML into plain data with the position of each key and value.

Every scalar stays the text the user wrote, because a variable's ``no`` or ``1e3`` must arrive unchanged. The field that
takes the text converts it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from envmatrix.errors import InputError, Where, where_in
from envmatrix.system.regular_files import MAX_TEXT_BYTES, decode_error_position, read_bytes

Key = tuple[str | int, ...]
#: Values that YAML can contain here.
Data: TypeAlias = str | list["Data"] | dict[str, "Data"] | None
_MAX_NODES = 200_000
_SYNTAX_REMEDY = "check that line and the one before it: a bracket, a quote, a colon or the indentation"
_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"


@dataclass
class Source:
    """Data read from ``file``. ``positions`` has those of each path's key (of an item: its value) and value."""

    file: Path
    text: str = ""
    data: Data = None
    positions: dict[Key, tuple[Where, Where]] = field(default_factory=dict)

    def where(self, path: Key, *, key: bool = False) -> Where:
        """Return the position of ``path``, or of its nearest enclosing entry that has one."""
        if key and path in self.positions:
            return self.positions[path][0]
        enclosing = (path[:end] for end in range(len(path), -1, -1))
        return next((self.positions[entry][1] for entry in enclosing if entry in self.positions), Where(self.file))

    def mapping(self, path: Key) -> dict[str, Data]:
        """Return the mapping at ``path``; empty if there is none. Raises InputError for any other value."""
        data = self.data
        for part in path:
            data = data.get(str(part)) if isinstance(data, dict) else None
        return as_mapping(data, path, self)


def as_mapping(data: Data, path: Key, source: Source) -> dict[str, Data]:
    """Return ``data`` as a mapping; empty for null. Raises InputError at ``path`` for any other value."""
    if data is None or isinstance(data, dict):
        return data or {}
    dotted = ".".join(map(str, path)) or "the file"
    raise InputError(f"{dotted} must contain `name: ...` lines, not {data!r}", where=source.where(path))


def _position(file: Path, mark: yaml.Mark | None) -> Where:
    return Where(file, mark.line + 1, mark.column + 1) if mark else Where(file)


def read_text(file: Path) -> str:
    """Read the file as UTF-8. Raises InputError if it cannot be read."""
    try:
        return read_bytes(file, MAX_TEXT_BYTES, pipe=True).decode()
    except FileNotFoundError as error:
        raise InputError(
            "the file does not exist",
            where=Where(file),
            remedy="go to the folder of your matrix.yaml, or name it: --matrix FILE",
        ) from error
    except UnicodeDecodeError as error:
        message, where = f"not UTF-8 text (byte {error.start})", decode_error_position(error, file)
        raise InputError(message, where=where, remedy="retype that character, and save the file as UTF-8") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=Where(file)) from error


def parse_yaml(text: str, file: Path, *, packaged: bool = False) -> Source:
    """Parse ``text``. Raises InputError with a position for bad YAML, duplicate keys and endless aliases.

    A ``packaged`` file is parsed by libyaml: faster, but with other messages, and not safe with endless nesting.
    """
    source = Source(file, text)
    try:
        loader = (_FAST_LOADER if packaged else yaml.SafeLoader)(text)
        node = loader.get_single_node()
        source.positions[()] = Where(file, 1, 1), Where(file, 1, 1)  # even for an empty file
        source.data = _NodeConverter(source, loader).convert(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        raise InputError(message, where=_position(file, mark), remedy=_SYNTAX_REMEDY) from error
    except yaml.YAMLError as error:  # an invalid character, which has no mark
        message, where = str(error).split("\n")[0], where_in(file, text, getattr(error, "position", 0))
        raise InputError(f"not valid YAML: {message}", where=where, remedy="remove that character") from error
    except RecursionError as error:
        remedy = "close what is still open there, or remove levels of nesting"
        raise InputError("nested too deeply", where=_deepest_nesting(text, file), remedy=remedy) from error
    return source


def _deepest_nesting(text: str, file: Path) -> Where:
    """Return the position at which the most lists and mappings are open."""
    depth, max_depth, where = 0, 0, Where(file)
    with contextlib.suppress(yaml.YAMLError):  # the text may have other errors, too
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > max_depth and event.start_mark:
                max_depth, where = depth, Where(file, event.start_mark.line + 1, event.start_mark.column + 1)
    return where


class _NodeConverter:
    def __init__(self, source: Source, loader: yaml.SafeLoader) -> None:
        self.source = source
        self.loader = loader
        self.count = 0
        self.open: list[int] = []

    def place(self, node: yaml.Node) -> Where:
        return _position(self.source.file, node.start_mark)

    def convert(self, node: yaml.Node, path: Key, key: yaml.Node | None = None) -> Data:
        self.count += 1
        if self.count > _MAX_NODES or id(node) in self.open:
            remedy = "replace the alias (*name) by its value"
            raise InputError("an alias contains itself or expands without end", where=self.place(node), remedy=remedy)
        self.source.positions[path] = self.place(key or node), self.place(node)
        self.open.append(id(node))
        try:
            return self._convert(node, path)
        finally:
            self.open.pop()

    def _convert(self, node: yaml.Node, path: Key) -> Data:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.convert(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.text(node) if isinstance(node, yaml.ScalarNode) and node.tag != _NULL else None

    def text(self, node: yaml.ScalarNode) -> str:
        """Return a scalar's text. Join surrogate pairs, which JSON writes for characters beyond 16 bits."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            remedy = "write the character itself, or both of its \\u halves"
            raise InputError("half a character (a lone surrogate)", where=self.place(node), remedy=remedy) from error

    def _mapping(self, node: yaml.MappingNode, path: Key) -> dict[str, Data]:
        self._refuse_duplicates(node)
        self.loader.flatten_mapping(node)
        mapping: dict[str, Data] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                remedy = "a list or mapping cannot be a key: write `name: value`"
                raise InputError("a key must be a single word", where=self.place(key), remedy=remedy)
            name = self.text(key)
            mapping[name] = self.convert(value, (*path, name), key)
        return mapping

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        first_keys: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in first_keys:
                    first_line = self.place(first_keys[key.value]).line
                    message = f"duplicate key {key.value!r} (first in line {first_line})"
                    raise InputError(message, where=self.place(key), remedy="remove one of them")
                first_keys[key.value] = key
