"""RO-Crate 1.1 metadata of a pack, for archives of research data (https://w3id.org/ro/crate/1.1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import quote

from envmatrix.results import Run
from envmatrix.runner.pack_archive import MANIFEST_FILE, Content, content_size
from envmatrix.version import __version__

CRATE_FILE = "ro-crate-metadata.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_FORMATS = {
    ".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml", ".md": "text/markdown",
    ".html": "text/html", ".py": "text/x-python", ".svg": "image/svg+xml",
}  # fmt: skip
_LICENSE = (
    "The publisher of this archive states the licence of its measurements and its program. bench/ and "
    "containers/ are part of envmatrix (Apache-2.0)."
)
_DESCRIPTIONS = {
    "matrix.yaml": "Environments, workloads and design", "run/run.json": "The plan, with its seed and environments",
    "run/trials.jsonl": "Every trial: outcome, raw step times, evidence", "run/report.md": "Report of the run",
    "run/summary.json": "Every effect with its interval, machine-readable",
}  # fmt: skip


def make_crate(run: Run, contents: Mapping[str, Content]) -> bytes:
    """Return ro-crate-metadata.json for a pack; equal contents give equal bytes."""
    body = {"@context": f"{_SPECIFICATION}/context", "@graph": list(_entities(run, contents))}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")


def _reference(name: str) -> dict[str, str]:
    return {"@id": quote(name, errors="replace")}


def _entities(run: Run, contents: Mapping[str, Content]) -> Iterator[dict[str, object]]:
    names = [MANIFEST_FILE, *sorted(contents)]
    yield {
        "@id": CRATE_FILE, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": _SPECIFICATION},
    }  # fmt: skip
    environments = dict.fromkeys(arm.environment for arm in run.plan.arms if not arm.is_control)
    yield {
        "@id": "./",
        "@type": "Dataset",
        "name": f"envmatrix run {run.name}",
        "datePublished": run.created[:10],
        "description": f"A benchmark of the environments {', '.join(environments)} (design {run.plan.design}, "
        f"seed {run.plan.seed}), with everything needed to repeat it: envmatrix reproduce "
        "ARCHIVE",
        "license": _LICENSE,
        "hasPart": [_reference(name) for name in names],
        "mentions": {"@id": "#run"},
    }
    yield {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"envmatrix run {run.name}",
        "startTime": run.created,
        "instrument": {"@id": "#envmatrix"},
        "object": _reference("matrix.yaml"),
        "result": [_reference(name) for name in names if name.startswith("run/")],
    }
    yield {
        "@id": "#envmatrix",
        "@type": "SoftwareApplication",
        "name": "envmatrix",
        "version": run.versions.get("envmatrix", __version__),
        "license": "https://spdx.org/licenses/Apache-2.0",
    }
    yield {
        "@id": MANIFEST_FILE,
        "@type": "File",
        "name": "Every file with its size and sha256",
        **_format(MANIFEST_FILE),
    }
    for name in sorted(contents):
        name_field = {"name": _DESCRIPTIONS[name]} if name in _DESCRIPTIONS else {}
        yield {
            **_reference(name),
            "@type": "File",
            "contentSize": str(content_size(contents[name])),
            **name_field,
            **_format(name),
        }


def _format(name: str) -> dict[str, str]:
    media_type = _FORMATS.get(PurePosixPath(name).suffix)
    return {"encodingFormat": media_type} if media_type else {}
