"""Store images' software bills of materials (SBOMs)."""

from __future__ import annotations

import json
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors
from envmatrix.build.context import BuildInputs
from envmatrix.build.sbom import bill_of_materials, installed_packages, locked_packages, with_subject
from envmatrix.engines.base import Prepared


def bill_file(cache: Cache, prepared: Prepared) -> Path:
    """Return the cached CycloneDX bill of an image."""
    return cache.root / "sbom" / f"{prepared.facts.get('files_digest', '').removeprefix('sha256:')}.1.6.cdx.json"


def write_bill(cache: Cache, prepared: Prepared, packages: str, inputs: BuildInputs) -> None:
    """Write the bill from the output of ``sbom.PACKAGES``, the wheels, and the packages of library folders."""
    components = [
        *installed_packages(packages, inputs.debs),
        *locked_packages((*inputs.wheels, *inputs.folders.pins), inputs.wheel_files),
    ]
    bill = bill_of_materials(prepared.image, prepared.facts["files_digest"], components)
    cache.write(bill_file(cache, prepared), json.dumps(bill, indent=1) + "\n")


def write_named_bill(cache: Cache, prepared: Prepared, target: Path, name: str, digest: str) -> None:
    """Write the bill to ``target`` for the image of a named environment with that digest."""
    bill = with_subject(cache.read_json(bill_file(cache, prepared)) or {}, name, digest)
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
