"""Catalogs: what is built in, by name, and what other installed packages add to it through entry points.

The entries of a catalog's literal dict are written as entry points are (``package.module:Name``), so that nothing is
imported before it is asked for by name. Entry points are looked up only for a name that is not built in, or for a list.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from envmatrix.errors import EnvmatrixError, InputError, suggestion

Thing = TypeVar("Thing")
#: A name stands in arms (``workload/environment@engine``), in lists with commas and in paths.
_NAME = re.compile(r"[a-z][a-z0-9_-]*\Z")


class ExtensionError(EnvmatrixError):
    """What another package adds cannot be used; the message names its distribution."""

    topic = "extension-error"


@dataclass(frozen=True)
class Entry:
    """One name of a catalog: ``target`` is ``package.module:Name``, ``origin`` the distribution ('': built in)."""

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
    """Things of one ``kind`` by name. Each entry names what makes one; ``protocol`` names what that must have.

    Other packages add to it through entry points of ``group``; ``reserved`` are names that mean something else.
    """

    kind: str
    group: str
    protocol: str
    built_in: Mapping[str, str]
    reserved: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return every name: those built in, then those that other packages add."""
        return tuple(entry.name for entry in self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """Return every entry; nothing is imported."""
        built_in = [Entry(name, target) for name, target in self.built_in.items()]
        added = {entry.name: entry for entry in map(_entry, self._added()) if not self._refusal(entry.name)}
        return (*built_in, *(added[name] for name in sorted(added)))

    def notes(self) -> tuple[str, ...]:
        """Say which installed entries are ignored, and why."""
        refusals = [(entry, self._refusal(entry.name)) for entry in map(_entry, self._added())]
        return tuple(
            f"{self.kind} {entry.name!r} of {entry.origin} is ignored: {why}" for entry, why in refusals if why
        )

    def make(self, name: str, *arguments: object) -> Thing:
        """Make the thing of that name.

        An unknown name is an InputError with the nearest one, one that does not work an ExtensionError.
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
        """Make everything; one that another package broke is an error in its place, and the others go on."""
        for entry in self.entries():
            try:
                yield entry, self.make(entry.name, *arguments)
            except ExtensionError as error:
                yield entry, error

    def failed(self, name: str, error: Exception) -> ExtensionError:
        """Return what a user is told when a thing of another package fails at its work."""
        entry = self._find(name)
        return _extension_error(self.kind, entry, f"{type(error).__name__}: {error}", "failed")

    def _added(self) -> tuple[EntryPoint, ...]:
        return _entry_points(self.group, tuple(sys.path))

    def _refusal(self, name: str) -> str:
        if name in self.built_in or name in self.reserved:
            return "envmatrix already has one with that name"
        if not _NAME.match(name):
            return "a name consists of lower-case letters, digits, '-' and '_'"
        return ""

    def _find(self, name: str) -> Entry:
        if name in self.built_in:
            return Entry(name, self.built_in[name])
        entries = [entry for entry in map(_entry, self._added()) if entry.name == name and not self._refusal(name)]
        if not entries:
            raise InputError(f"no {self.kind} {name!r}", remedy=suggestion(name, (*self.names(), *self.reserved)))
        if len(entries) > 1:
            raise ExtensionError(
                f"several packages provide {self.kind} {name!r}: {', '.join(entry.origin for entry in entries)}",
                remedy="uninstall all but one of them",
            )
        return entries[0]


def import_target(target: str) -> Callable[..., object]:
    """Import what ``package.module:Name`` names; it can be called."""
    module, _, attribute = target.partition(":")
    target_object: object = importlib.import_module(module.strip())
    for part in attribute.strip().split("."):
        target_object = getattr(target_object, part)
    if not callable(target_object):
        raise TypeError(f"{target} is not callable")
    return target_object


def _extension_error(kind: str, entry: Entry, why: str, problem: str = "cannot be used") -> ExtensionError:
    package = entry.origin.split(" ")[0] or "envmatrix"
    return ExtensionError(
        f"{kind} {entry.name!r} of {entry.origin or 'envmatrix'} {problem}: {why}",
        remedy=f"update that package, or uninstall it: python -m pip uninstall {package}",
    )


def protocol_members(protocol: object) -> list[str]:
    """Return the names that a protocol asks for: its methods and properties, those it inherits among them."""
    return [name for name in dir(protocol) if not name.startswith("_")]
