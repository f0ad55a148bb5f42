"""What a pack says of itself to archives of research data: RO-Crate 1.1 (https://w3id.org/ro/crate/1.1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import quote

from envmatrix.bundle.archive import Content, entry_of
from envmatrix.bundle.manifest import NAME
from envmatrix.results import Run
from envmatrix.version import __version__

CRATE = "ro-crate-metadata.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_FORMATS = {
    ".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml", ".md": "text/markdown",
    ".html": "text/html", ".py": "text/x-python", ".svg": "image/svg+xml",
}  # fmt: skip
_LICENSE = (
    "Whoever publishes this archive states the licence of the measurements and of the program in it. bench/ and "
    "containers/ are envmatrix's, Apache-2.0."
)
_NAMES = {
    "matrix.yaml": "Environments, workloads and design", "run/run.json": "The plan, with its seed and environments",
    "run/trials.jsonl": "Every trial: outcome, raw step times, evidence", "run/report.md": "What the run says",
    "run/summary.json": "Every effect with its interval, for programs",
}  # fmt: skip


def crate(run: Run, contents: Mapping[str, Content]) -> bytes:
    """Return ro-crate-metadata.json for what a pack holds, the same for the same contents."""
    body = {"@context": f"{_SPECIFICATION}/context", "@graph": list(_entities(run, contents))}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")


def _id(name: str) -> dict[str, str]:
    return {"@id": quote(name, errors="replace")}


def _entities(run: Run, contents: Mapping[str, Content]) -> Iterator[dict[str, object]]:
    names = [NAME, *sorted(contents)]
    yield {
        "@id": CRATE, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": _SPECIFICATION},
    }  # fmt: skip
    environments = dict.fromkeys(arm.environment for arm in run.plan.arms if not arm.is_control)
    yield {
        "@id": "./", "@type": "Dataset", "name": f"envmatrix run {run.name}", "datePublished": run.created[:10],
        "description": f"A benchmark of the environments {', '.join(environments)} (design {run.plan.design}, seed "
        f"{run.plan.seed}), with all that is needed to repeat it: envmatrix reproduce ARCHIVE",
        "license": _LICENSE, "hasPart": [_id(name) for name in names], "mentions": {"@id": "#run"},
    }  # fmt: skip
    yield {
        "@id": "#run", "@type": "CreateAction", "name": f"envmatrix run {run.name}", "startTime": run.created,
        "instrument": {"@id": "#envmatrix"}, "object": _id("matrix.yaml"),
        "result": [_id(name) for name in names if name.startswith("run/")],
    }  # fmt: skip
    yield {
        "@id": "#envmatrix", "@type": "SoftwareApplication", "name": "envmatrix",
        "version": run.versions.get("envmatrix", __version__), "license": "https://spdx.org/licenses/Apache-2.0",
    }  # fmt: skip
    yield {"@id": NAME, "@type": "File", "name": "Every file with its size and sha256", **_format(NAME)}
    for name in sorted(contents):
        more = {"name": _NAMES[name]} if name in _NAMES else {}
        yield {**_id(name), "@type": "File", "contentSize": str(entry_of(contents[name]).size), **more, **_format(name)}


def _format(name: str) -> dict[str, str]:
    known = _FORMATS.get(PurePosixPath(name).suffix)
    return {"encodingFormat": known} if known else {}
