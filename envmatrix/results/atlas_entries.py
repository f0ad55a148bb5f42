"""An atlas: a folder with one small JSON file per run, which has the run's machine and effects but no trials."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from envmatrix.errors import InputError, StoreError, Where
from envmatrix.results.anonymize import Anonymizer
from envmatrix.results.document_checks import require_exact_schema, validated
from envmatrix.system.atomic_files import read_text, store_error, write_whole
from envmatrix.system.json_parsing import parse_json
from envmatrix.system.ssh_signatures import ATLAS, describe_signature, sign_text

_SCHEMA = 1
_REMEDY = "restore it from a copy, or delete it and add its run again"
#: What is told of a file without a signature.
_UNSIGNED = "not signed"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ProcessorFacts(_Document):
    """What identifies a machine in an atlas, instead of its name. Machines with the same facts count as one."""

    model: str
    architecture: str
    cpus: int
    cores: int
    numa_nodes: int | None = None
    virtual: bool | None = None
    flags: tuple[str, ...] = ()


class StoredSteady(_Document):
    """The effect in the later steps of processes that went on, from ``since_s`` to ``until_s``, in ``units`` blocks."""

    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    variance: float = Field(ge=0)
    units: int = Field(ge=2)
    verdict: str
    since_s: float
    until_s: float

    @property
    def time_range_text(self) -> str:
        """Which seconds of the steps of a process these are."""
        return f"seconds {self.since_s:.0f} to {self.until_s:.0f}"


class StoredEffect(_Document):
    """One environment against its reference in the primary metric, as in the run's report (``stats.effects.Effect``).

    ``variance`` is that of the log ratio. ``work`` is a digest of the workload and its program; ``changes`` has the
    levels that differ from those of the reference: factor -> (before, after).
    """

    workload: str
    work: str
    engine: str
    metric: str
    environment: str
    reference: str
    changes: Mapping[str, tuple[str, str]]
    torch: str
    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    variance: float = Field(ge=0)
    units: int = Field(ge=2)
    blocks: int = Field(ge=2)
    verdict: str
    withheld: str = ""
    flags: tuple[str, ...] = ()
    steady: StoredSteady | None = None


class AtlasEntry(_Document):
    """One run. ``run`` is a digest that the run keeps if it is renamed, resumed or copied."""

    schema_number: int = Field(default=_SCHEMA, alias="schema")
    run: str
    machine: ProcessorFacts
    effects: tuple[StoredEffect, ...] = Field(min_length=1)


def digest(text: str) -> str:
    """Return a short digest of a text, without regard to line breaks at its end, which git may change."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class AtlasFiles:
    """The content of an atlas: each run once, with the most blocks, and an error for each file that cannot be used.

    ``signatures`` has one line about each file that can be used, if it was asked who signed it.
    """

    entries: tuple[AtlasEntry, ...]
    errors: tuple[StoreError, ...] = ()
    signatures: Mapping[str, str] = field(default_factory=dict)


def write_entry(folder: Path, entry: AtlasEntry, names: Anonymizer, key: Path | None = None) -> tuple[Path, bool]:
    """Write an entry, anonymized and named after its content, and return the file and whether it is new.

    With an SSH ``key``, its signature is written next to it, unless there is one. No file is ever overwritten. Raises
    InputError if the key cannot sign, StoreError if the folder cannot be written or holds a damaged file of that name.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, and an atlas is a folder", remedy="name a folder: --to FOLDER")
    text = json.dumps(names.run(entry.model_dump(by_alias=True), any_home=True), sort_keys=True) + "\n"
    file = folder / f"run-{digest(text)}.json"
    signature = sign_text(text, key, ATLAS) if key and not signature_file(file).exists() else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(error, folder) from error
    if is_new := not file.exists():
        write_whole(file, text)
    else:
        read_entry(file)
    if signature:
        write_whole(signature_file(file), signature)
    return file, is_new


def signature_file(file: Path) -> Path:
    """Return the file with the signature of an entry, which ``ssh-keygen -Y verify`` can read too."""
    return file.with_name(f"{file.name}.sig")


def read_entry(file: Path) -> AtlasEntry:
    """Read an entry. Raises StoreError if it is damaged, edited, or of a newer version."""
    text = read_text(file)
    document = require_exact_schema(parse_json(text, file), file, _SCHEMA)
    if file.stem != f"run-{digest(text)}":
        raise StoreError("its content does not match its name: it was changed", where=Where(file), remedy=_REMEDY)
    return validated(AtlasEntry, document, "this is not an entry of an atlas ({})", Where(file), _REMEDY)


def _verify_entry(file: Path, signers: Path) -> str:
    """Return one line about the signature of an entry; an entry may have none. Raises StoreError if it is wrong."""
    if not signature_file(file).exists():
        return _UNSIGNED
    text, signature = read_text(file), read_text(signature_file(file)).replace("\r\n", "\n")  # git may add them
    return describe_signature(f"{text.strip()}\n", signature.encode(), signers, file, ATLAS)


def read_entries(folder: Path, signers: Path | None = None) -> AtlasFiles:
    """Read an atlas. With a file of allowed ``signers``, files that others signed cannot be used, unsigned ones can.

    If several files are of one run, a signed one counts before all unsigned ones, which anybody can make.
    """
    runs: dict[str, tuple[tuple[int, ...], AtlasEntry]] = {}
    errors: list[StoreError] = []
    signatures: dict[str, str] = {}
    for file in sorted(folder.glob("run-*.json")):
        try:
            entry = read_entry(file)
            signed = _verify_entry(file, signers) if signers else _UNSIGNED
        except StoreError as error:
            errors.append(error)
            continue
        if signers:
            signatures[file.name] = signed
        blocks = sum(effect.blocks for effect in entry.effects)
        rank = int(signed != _UNSIGNED), blocks, sum(effect.steady.units for effect in entry.effects if effect.steady)
        if entry.run not in runs or rank > runs[entry.run][0]:
            runs[entry.run] = rank, entry
    return AtlasFiles(tuple(entry for _, entry in runs.values()), tuple(errors), signatures)
