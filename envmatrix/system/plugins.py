"""Catalogs of extensions: built-in ones by name, and those of other packages through entry points.

Entries are written like entry points (``package.module:Name``), so that nothing is imported until it is used. Entry
points are looked up only for names that are not built in, and for lists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from envmatrix.errors import EnvmatrixError, InputError, suggestion

Thing = TypeVar("Thing")
#: Names appear in ``workload/environment@engine``, in lists with commas and in paths.
_NAME = re.compile(r"[a-z][a-z0-9_-]*\Z")


class ExtensionError(EnvmatrixError):
    """An extension of another package cannot be used; the message names its distribution."""

    topic = "extension-error"


@dataclass(frozen=True)
class Entry:
    """One name of a catalog: ``target`` is ``package.module:Name``, ``origin`` its distribution ('': built in)."""

    name: str
    target: str
    origin: str = ""


@lru_cache(maxsize=8)
def _entry_points(group: str, _search_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _entry(point: EntryPoint) -> Entry:
    dist = point.dist
    return Entry(point.name, point.value, f"{dist.name} {dist.version}" if dist else "an unknown distribution")


@dataclass(frozen=True)
class Catalog(Generic[Thing]):
    """Extensions of one ``kind`` by name. An entry names its factory; ``protocol`` names the required interface.

    Other packages add to it with entry points in ``group``; names in ``reserved`` have other meanings.
    """

    kind: str
    group: str
    protocol: str
    built_in: Mapping[str, str]
    reserved: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return every name: built-in ones first, then those of other packages."""
        return tuple(entry.name for entry in self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """Return every entry without importing anything."""
        built_in = [Entry(name, target) for name, target in self.built_in.items()]
        added = {entry.name: entry for entry, refusal in self._added() if not refusal}
        return (*built_in, *(added[name] for name in sorted(added)))

    def notes(self) -> tuple[str, ...]:
        """Return messages on installed entries that are ignored, with reasons."""
        ignored = [(entry, refusal) for entry, refusal in self._added() if refusal]
        return tuple(f"{self.kind} {entry.name!r} of {entry.origin} is ignored: {why}" for entry, why in ignored)

    def make(self, name: str, *arguments: object) -> Thing:
        """Create the extension with that name.

        Raises InputError with a suggestion for an unknown name, and ExtensionError if it does not work.
        """
        entry = self._find(name)
        try:
            plugin = import_target(entry.target)(*arguments)
            lacks = [member for member in protocol_members(import_target(self.protocol)) if not hasattr(plugin, member)]
            calls_itself = getattr(plugin, "name", name)
        except EnvmatrixError:
            raise
        except Exception as error:
            if not entry.origin:
                raise
            raise _extension_error(self.kind, entry, f"{type(error).__name__}: {error}") from error
        if lacks:
            raise _extension_error(self.kind, entry, f"{entry.target} lacks {', '.join(lacks)}")
        if calls_itself != name:
            raise _extension_error(self.kind, entry, f"its own name is {calls_itself!r}")
        return cast("Thing", plugin)

    def make_all(self, *arguments: object) -> Iterator[tuple[Entry, Thing | ExtensionError]]:
        """Create all extensions; yield an error in place of one that another package broke."""
        for entry in self.entries():
            try:
                yield entry, self.make(entry.name, *arguments)
            except ExtensionError as error:
                yield entry, error

    def failed(self, name: str, error: Exception) -> ExtensionError:
        """Return the error to report if another package's extension fails while working."""
        entry = self._find(name)
        return _extension_error(self.kind, entry, f"{type(error).__name__}: {error}", "failed")

    def _added(self) -> list[tuple[Entry, str]]:
        """Return the entries of other packages, each with why it is ignored ('': it is not)."""
        entries = map(_entry, _entry_points(self.group, tuple(sys.path)))
        return [(entry, self._refusal(entry.name)) for entry in entries]

    def _refusal(self, name: str) -> str:
        if name in self.built_in or name in self.reserved:
            return "envmatrix already has one with that name"
        if not _NAME.match(name):
            return "a name consists of lower-case letters, digits, '-' and '_'"
        return ""

    def _find(self, name: str) -> Entry:
        if name in self.built_in:
            return Entry(name, self.built_in[name])
        entries = [entry for entry, refusal in self._added() if entry.name == name and not refusal]
        if not entries:
            raise InputError(f"no {self.kind} {name!r}", remedy=suggestion(name, (*self.names(), *self.reserved)))
        if len(entries) > 1:
            raise ExtensionError(
                f"several packages provide {self.kind} {name!r}: {', '.join(entry.origin for entry in entries)}",
                remedy="uninstall all but one of them",
            )
        return entries[0]


def import_target(target: str) -> Callable[..., object]:
    """Import the callable that ``package.module:Name`` names."""
    imported: object = EntryPoint("", target, "").load()
    if not callable(imported):
        raise TypeError(f"{target} is not callable")
    return imported


def _extension_error(kind: str, entry: Entry, why: str, problem: str = "cannot be used") -> ExtensionError:
    package = entry.origin.split(" ")[0] or "envmatrix"
    return ExtensionError(
        f"{kind} {entry.name!r} of {entry.origin or 'envmatrix'} {problem}: {why}",
        remedy=f"update that package, or uninstall it: python -m pip uninstall {package}",
    )


def protocol_members(protocol: object) -> list[str]:
    """Return the members that a protocol requires: methods and properties, including inherited ones."""
    return [name for name in dir(protocol) if not name.startswith("_")]
