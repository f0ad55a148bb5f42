"""Generate the reference pages for commands, keys and evidence from the code, so that they always match it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envmatrix.cli.command_table import GROUPS, command_parser
from envmatrix.evidence.dotted_paths import SHORT_PATHS, kind_of, known_paths

_DOCS = Path(__file__).parent
_SECTIONS = {
    "Workload": "A workload", "MetricSource": "`metric` of a workload", "Check": "`check` of a workload",
    "Slurm": "`slurm` of a design", "SourceBuild": "`build` of a level",
}  # fmt: skip
_KINDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "array": "list",
    "object": "mapping",
}


def write_pages(folder: Path) -> None:
    """Write commands.md, keys.md and evidence.md into ``folder``; leave unchanged files alone."""
    folder.mkdir(exist_ok=True)
    os.environ["COLUMNS"] = "100"  # argparse wraps help to the terminal's width
    for name, lines in (("commands", _commands()), ("keys", _keys()), ("evidence", _evidence())):
        file = folder / f"{name}.md"
        text = "\n".join(lines) + "\n"
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _commands() -> Iterator[str]:
    yield "# Commands\n\nThe output of `envmatrix COMMAND --help`."
    for group, commands in GROUPS.items():
        yield f"\n## To {group}"
        for name in commands:
            yield f"\n### {name}\n\n```text\n{command_parser(name).format_help().strip()}\n```"


def _keys() -> Iterator[str]:
    schema = json.loads((_DOCS / "matrix.schema.json").read_text(encoding="utf-8"))
    yield "# All keys of workloads, and their values\n\nFrom the JSON Schema;"
    yield "[matrix.yaml](../matrix.md) explains how they work together."
    for model, heading in _SECTIONS.items():
        yield f"\n## {heading}\n\n| key | values | default | meaning |\n|---|---|---|---|"
        defined = schema["$defs"].pop(model)
        mapping = defined if "properties" in defined else next(one for one in defined["anyOf"] if "properties" in one)
        for key, value in mapping["properties"].items():
            yield f"| `{key}` | {_cell(_values(value))} | {_default(value)} | {_cell(value.get('description', ''))} |"
    if schema["$defs"]:
        raise ValueError(f"no heading for {', '.join(schema['$defs'])}")


def _values(value: dict[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    found = [_kind(kind.get("type")) for kind in value.get("anyOf") or [value]]
    return " or ".join(dict.fromkeys(kind for kind in found if kind))


def _kind(kind: object) -> str:
    names = kind if isinstance(kind, list) else [kind]
    return "text" if "string" in names else next((_KINDS[name] for name in names if name in _KINDS), "")


def _default(value: dict[str, Any]) -> str:
    return f"`{_cell(json.dumps(value['default']))}`" if value.get("default") is not None else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _evidence() -> Iterator[str]:
    yield (
        "# Evidence: the paths that you can check\n\nEvery value that a process reads about itself. "
        "`envmatrix evidence ENV --all` prints them; [checks](../matrix.md#claims-checks-of-a-level) name them.\n"
    )
    yield "| path | value |\n|---|---|"
    for path in known_paths():
        short_for = f", short for `{SHORT_PATHS[path]}`" if path in SHORT_PATHS else ""
        yield f"| `{path}` | {kind_of(path).value}{short_for} |"
