"""Where an image's software bill of materials lies, and how it gets there."""

from __future__ import annotations

import json
from pathlib import Path

from envmatrix.engines.base import Prepared
from envmatrix.images.cache import Cache, disk_errors
from envmatrix.images.context import Ingredients
from envmatrix.images.sbom import bill_of_materials, debian_components, locked_components


def bill_file(cache: Cache, prepared: Prepared) -> Path:
    """Return where the CycloneDX bill of an image lies in the cache."""
    return cache.root / "sbom" / f"{prepared.facts['rootfs'].removeprefix('sha256:')}.cdx.json"


def write_bill(cache: Cache, prepared: Prepared, status: str, made: Ingredients) -> None:
    """Write the bill: what dpkg's ``status`` file inside says, the wheels, and what the library folders came from."""
    components = [*debian_components(status), *locked_components((*made.wheels, *made.folders.pins))]
    bill = bill_of_materials(prepared.image, prepared.facts["rootfs"], components)
    cache.write(bill_file(cache, prepared), json.dumps(bill, indent=1) + "\n")


def lay_beside(cache: Cache, prepared: Prepared, folder: Path, environment: str) -> Path:
    """Copy the bill to ``folder``, beside the image of a named environment."""
    target = folder / f"{environment}.sbom.json"
    with disk_errors(target):
        folder.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bill_file(cache, prepared).read_bytes())
    return target
