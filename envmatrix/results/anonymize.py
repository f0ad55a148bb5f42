"""Anonymization of results: placeholders for a user's folders and name, numbers for hosts.

Shared results contain {home}, {cache}, {matrix}, {user} and node-1. names.json maps them back to real names; it stays
on the machine that made the run. Placeholders of other users are kept as they are: a matrix never contains any.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from envmatrix.errors import Where
from envmatrix.results.document_checks import validated
from envmatrix.system import resource_paths
from envmatrix.system.atomic_files import read_json, write_whole
from envmatrix.system.reading_with_retries import exists

HOME, CACHE, MATRIX, USER = "{home}", "{cache}", "{matrix}", "{user}"
_BEFORE = r"(?:(?<![\w.+@%~-])|(?<=\s-[IL]))"
_AFTER = r"(?![\w-]|\.\w)"
_ANY_HOME = r"/root|/(?:home|Users)/[\w.+@-]*\w"
#: In these folders, a folder with the user's name does not belong to the user.
_SYSTEM = r"(?!opt/|usr/|lib|etc/|proc/|sys/|dev/|s?bin/)"
_CONTAINER = re.compile(r"[0-9a-f]{12}")
_PLACEHOLDER = re.compile(r"\{(?:home|cache|matrix|user)\}")
_NUMBERED = re.compile(r"node-([0-9]{1,9})")


class _Document(BaseModel):
    """The content of names.json. With ``hosts`` None, hosts keep their real names."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    folders: Mapping[str, str] = Field(default_factory=dict)
    user: str = ""
    hosts: Mapping[str, str] | None = None


@dataclass
class Anonymizer:
    """Replacements for real names: ``folders`` maps folder to placeholder, ``hosts`` maps name to node-1.

    With ``hosts`` None, hosts keep their names. ``again``: numbered hosts in the input are kept.
    """

    folders: Mapping[str, str]
    user: str = ""
    hosts: dict[str, str] | None = field(default_factory=dict)
    again: bool = False

    def without_user_folders(self, value: str, *, any_home: bool = True) -> str:
        """Return a text without this machine's user folders; ``any_home`` also replaces home folders of other users."""
        if "/" not in value:
            return value
        anonymized = self._folder_patterns[any_home].sub(lambda match: self.folders.get(match[0], HOME), value)
        anonymized = self._user.sub(lambda match: match[1] + USER, anonymized) if self._user else anonymized
        return anonymized.replace(f"{HOME}/.cache/envmatrix", CACHE) if any_home else anonymized

    def matrix(self, text: str) -> str:
        """Return a matrix's text for a pack, without {matrix}: a pack does not contain the files of that folder."""
        folders = {real: shown for real, shown in self.folders.items() if shown != MATRIX}
        return replace(self, folders=folders).without_user_folders(text, any_home=False)

    def host(self, name: str) -> str:
        """Return comma-separated host names, anonymized; container IDs are kept, as they do not identify a host."""
        return ",".join(map(self._host, name.split(",")))

    def run(self, body: Mapping[str, object], *, any_home: bool = False) -> dict[str, object]:
        """Return run.json anonymized. ``real`` cannot undo the replacements of ``any_home``."""
        anonymized = _map_strings(body, lambda text: self.without_user_folders(text, any_home=any_home))
        assert isinstance(anonymized, dict)
        host = anonymized.get("host")
        if isinstance(host, dict) and isinstance(host.get("name"), str):
            anonymized["host"] = {**host, "name": self.host(host["name"])}
        return anonymized

    def trial(self, body: Mapping[str, object]) -> dict[str, object]:
        """Return a line of trials.jsonl, anonymized."""
        node = body.get("node")
        shown_node = self.host(node) if isinstance(node, str) else node
        anonymized = _map_strings(body, self.without_user_folders)
        assert isinstance(anonymized, dict)
        for rank in _rank_entries(anonymized):
            rank |= {key: self.host(name) for key in ("node", "host") if isinstance(name := rank.get(key), str)}
        for key in {"reason", "unproven"} & anonymized.keys():
            anonymized[key] = _map_strings(anonymized[key], self._without_hosts)
        return anonymized if node is None else {**anonymized, "node": shown_node}

    def real(self, value: object) -> object:
        """Return a document with this machine's folders and user in place of the placeholders."""
        return _map_strings(
            value, lambda text: _PLACEHOLDER.sub(lambda match: self._real_folders.get(match[0], match[0]), text)
        )

    def save(self, file: Path) -> None:
        """Write names.json."""
        body = {"folders": dict(self.folders), "user": self.user, "hosts": self.hosts}
        write_whole(file, json.dumps(body, indent=1) + "\n")

    def real_host(self, shown: str) -> str:
        """Return the real name of a host shown as node-1, or the shown name if the real one is unknown."""
        return next((name for name, number in (self.hosts or {}).items() if number == shown), shown)

    def _host(self, name: str) -> str:
        if self.hosts is None or not name or _CONTAINER.fullmatch(name):
            return name
        if self.again and name in self.hosts.values():
            return name
        short = name.split(".")[0]  # n1 and n1.site.org are the same host
        shown_name = next((number for host, number in self.hosts.items() if host.split(".")[0] == short), None)
        if shown_name is None:
            numbers = [int(match[1]) for number in self.hosts.values() if (match := _NUMBERED.fullmatch(number))]
            shown_name = self.hosts[name] = f"node-{max(numbers, default=0) + 1}"
        return shown_name

    def _without_hosts(self, text: str) -> str:
        for name, shown in (self.hosts or {}).items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name.split('.')[0])}(?:\.[\w-]+)*(?![\w-])", shown, text)
        return text

    @cached_property
    def _real_folders(self) -> dict[str, str]:
        folders = {shown: real for real, shown in reversed([*self.folders.items()])}
        return {**folders, **({USER: self.user} if self.user else {})}

    @cached_property
    def _folder_patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """The pattern of this user's folders, and one that also matches the home folders of other users."""
        own = "|".join(re.escape(folder) for folder in sorted(self.folders, key=len, reverse=True)) or "(?!)"
        return re.compile(f"{_BEFORE}(?:{own}){_AFTER}"), re.compile(f"{_BEFORE}(?:{own}|{_ANY_HOME}){_AFTER}")

    @cached_property
    def _user(self) -> re.Pattern[str] | None:
        if self.user in ("", "root"):
            return None
        return re.compile(rf"{_BEFORE}(/{_SYSTEM}(?:[\w.+-]+/)+|/){re.escape(self.user)}{_AFTER}")


def is_numbered_host(host: str) -> bool:
    """Return whether a host name is a numbered replacement such as node-1."""
    return _NUMBERED.fullmatch(host) is not None


def is_anonymous_host(name: str) -> bool:
    """Return whether a name identifies no host: it is a numbered replacement or a container ID."""
    return is_numbered_host(name) or _CONTAINER.fullmatch(name) is not None


def local_anonymizer(matrix: Path | None = None, hosts: dict[str, str] | None = None) -> Anonymizer:
    """Return the anonymizer for this machine and user; ``matrix`` is the folder of the matrix."""
    matrix_folder = {MATRIX: matrix.absolute()} if matrix else {}
    folders_by_placeholder = {CACHE: resource_paths.cache_folder(), **matrix_folder, HOME: Path("~").expanduser()}
    folders: dict[str, str] = {}
    for placeholder, folder in folders_by_placeholder.items():
        for path in (folder, folder.resolve()):
            if len(path.parts) > (1 if placeholder == HOME else 2):  # short paths, such as /work, are not personal
                folders.setdefault(str(path), placeholder)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return Anonymizer(folders, user, hosts)


def read_anonymizer(file: Path) -> Anonymizer | None:
    """Read names.json and add the current folders of this machine; return None if the file does not exist."""
    if not exists(file):
        return None
    message = "this is not a names.json that envmatrix wrote ({})"
    remedy = "restore it from a copy; if the run is complete, you may remove it"
    document, local = validated(_Document, read_json(file), message, Where(file), remedy), local_anonymizer()
    further_folders = {folder: name for folder, name in local.folders.items() if folder not in document.folders}
    hosts = None if document.hosts is None else dict(document.hosts)
    return Anonymizer({**document.folders, **further_folders}, document.user or local.user, hosts)


def _map_strings(value: object, change: Callable[[str], str]) -> object:
    """Return a JSON document with ``change`` applied to every string, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(entry, change) for key, entry in value.items()}
    return [_map_strings(entry, change) for entry in value] if isinstance(value, (list, tuple)) else value


def _rank_entries(value: object) -> Iterator[dict[str, object]]:
    """Yield the entry of each process of a job, at any depth of the document."""
    for entry in value.values() if isinstance(value, dict) else ():
        yield from _rank_entries(entry)
    ranks = value.get("ranks") if isinstance(value, dict) else None
    yield from (rank for rank in ranks if isinstance(rank, dict)) if isinstance(ranks, list) else ()
