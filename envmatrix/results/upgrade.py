"""Older runs, turned into what the newest schema says when they are read. On disk they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from envmatrix.errors import StoreError, Where
from envmatrix.matrix.include import RENAMED_KEYS
from envmatrix.results.json_text import parse_json

#: What stood in the plan of schema 1 too, and under which name in the design.
_LIMITS = {
    "seed": "seed",
    "min_blocks": "min_blocks",
    "max_blocks": "max_blocks",
    "target": "target",
    "margin": "margin",
    "budget_s": "budget",
    "race": "race",
}
#: What older runs under Slurm took from its configuration or from the machine that they were started on.
_GUESSED = ("machine", "numa_nodes", "memory_bytes", "hypervisor")
#: How trials ran, and how many steps of each turn were set apart, before a design said so.
_OLD_SCHEDULE = {"schedule": "sequential", "turn_apart": 2}


def upgraded(body: dict[str, object]) -> dict[str, object]:
    """Return a document of run.json as the newest schema has it; what is wrong in it is left for its type to say."""
    body = {**body, "host": _host(body["host"])} if "host" in body else body
    if isinstance(design := body.get("design"), dict):
        body = {**body, "design": {**_OLD_SCHEDULE, **design}}
    if body.get("schema") != 1:
        return body
    plan = body.get("plan")
    if not isinstance(plan, dict):
        return {**_without(body, "matrix_text"), "schema": 2}
    limits = {new: plan[old] for old, new in _LIMITS.items() if old in plan}
    design = body.get("design")
    whole = {**_renamed(design), **limits} if isinstance(design, dict) else design
    return {
        **_without(body, "plan", "matrix_text"),
        "schema": 2,
        "arms": plan.get("arms"),
        "design": whole,
        "environments": _each(body.get("environments"), _environment),
        "workloads": _each(body.get("workloads"), _workload),
    }


def _host(host: object) -> object:
    """Leave undefined what runs under Slurm wrote as blanks or guessed: of its nodes, which name no kernel."""
    if not isinstance(host, dict) or host.get("kernel") not in ("", None):
        return host
    return {key: None if value == "" or key in _GUESSED else value for key, value in host.items()}


def _renamed(design: Mapping[str, object]) -> dict[str, object]:
    return {RENAMED_KEYS.get(key, key): value for key, value in design.items()}


def _each(entries: object, upgrade: Callable[[object], object]) -> object:
    return {name: upgrade(entry) for name, entry in entries.items()} if isinstance(entries, dict) else entries


def _environment(entry: object) -> object:
    """Leave out the digest, which follows from the rest."""
    return _without(entry, "digest") if isinstance(entry, dict) else entry


def _workload(entry: object) -> object:
    """Leave out what a workload does not have: schema 1 wrote an empty command where there was none."""
    if not isinstance(entry, dict):
        return entry
    return {key: value for key, value in entry.items() if value not in (None, [], "")}


def _without(body: Mapping[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in body.items() if key not in keys}


def matrix_text(text: str, file: Path) -> str:
    """Return the text of the matrix that a run.json of schema 1 holds."""
    body = parse_json(text, file)
    found = body.get("matrix_text") if isinstance(body, dict) else None
    if not isinstance(found, str):
        raise StoreError("the matrix of this run is gone", where=Where(file.parent / "matrix.yaml"),
                         remedy="restore it from a copy")  # fmt: skip
    return found
