"""RO-Crate 1.1 metadata of a pack, for archives of research data (https://w3id.org/ro/crate/1.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import yaml

from envmatrix.results import Run
from envmatrix.runner.reproduction.pack_archive import MANIFEST_FILE, Content, content_size
from envmatrix.version import __version__

CRATE_FILE = "ro-crate-metadata.json"
_TEXTS = Path(__file__).with_suffix(".yaml")


def make_crate(run: Run, contents: Mapping[str, Content]) -> bytes:
    """Return ro-crate-metadata.json for a pack; equal contents give equal bytes."""
    texts = yaml.safe_load(_TEXTS.read_text(encoding="utf-8"))
    environments = dict.fromkeys(arm.environment for arm in run.plan.arms if not arm.is_control)
    words = {
        "run": run.name,
        "created": run.created,
        "date": run.created[:10],
        "environments": ", ".join(environments),
        "design": run.plan.design,
        "seed": run.plan.seed,
        "version": run.versions.get("envmatrix", __version__),
    }
    entities = texts["entities"]
    for entity in entities:
        entity |= {key: text.format_map(words) for key, text in entity.items() if isinstance(text, str)}
    names = [MANIFEST_FILE, *sorted(contents)]
    _, dataset, action, *_ = entities
    dataset["hasPart"] = [_reference(name) for name in names]
    action["result"] = [_reference(name) for name in names if name.startswith("run/")]
    for name in names[1:]:
        facts = {
            "name": texts["descriptions"].get(name),
            "encodingFormat": texts["formats"].get(PurePosixPath(name).suffix),
        }
        known_facts = {key: fact for key, fact in facts.items() if fact}
        size = str(content_size(contents[name]))
        entities.append({**_reference(name), "@type": "File", "contentSize": size, **known_facts})
    body = {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": entities}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")


def _reference(name: str) -> dict[str, str]:
    return {"@id": quote(name, errors="replace")}
