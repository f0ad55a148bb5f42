"""Records of prepared images, so that preparing an unchanged one takes milliseconds, and their bills of materials."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors, json_digest
from envmatrix.build.debian.minimal_base import bootstrap_argv
from envmatrix.build.images.context import BuildInputs, context_facts
from envmatrix.build.images.definitions import recipe_digest
from envmatrix.build.images.file_listing import ENGINE_PATHS, listing_argv
from envmatrix.build.images.sbom import PACKAGES, bill_of_materials, installed_packages, locked_packages, with_subject
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Prepared
from envmatrix.plan.environment import Image, Library
from envmatrix.system.architectures import this_architecture

#: Program for the Python inside: prints the names that the image's loader finds by itself.
LOADER = """
import json, subprocess
said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
print(json.dumps(sorted({line.split()[0] for line in said.splitlines()[1:] if " => " in line})))
"""


def record_file(
    places: BuildPaths, engine: str, image: Image, libraries: tuple[Library, ...], *extra_inputs: object
) -> Path:
    """Return the file of a prepared image, named by all its inputs, including the texts of its locks."""
    architecture = this_architecture()
    pattern = re.compile(rf"({re.escape(image.name)}|libraries|system)\..*{re.escape(architecture)}\.txt\Z")
    names = sorted(places.locks.iterdir()) if places.locks.is_dir() else []
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in names if pattern.match(path.name)]
    recipe_parts = (recipe_digest(wheels=True), bootstrap_argv("", Path(), ""), listing_argv("", "/", ENGINE_PATHS))
    held_libraries = [asdict(item) for item in libraries if item.is_for(image, architecture)]
    key = json_digest(asdict(image), held_libraries, texts, recipe_parts, extra_inputs)
    return places.cache.root / "prepared" / f"{engine}-{key[:24]}.json"


def prepared_fields(prepared: Prepared) -> dict[str, object]:
    """Return the fields that ``prepared_from`` reads, as plain values."""
    return {**asdict(prepared), "loader": None if prepared.loader is None else sorted(prepared.loader)}


def prepared_from(document: object) -> Prepared | None:
    """Return the image in a build record; None if there is none, or it is of another version."""
    if not isinstance(document, dict):
        return None
    try:
        loader = document.pop("loader")
        return Prepared(**document, loader=None if loader is None else frozenset(loader))
    except (TypeError, KeyError):
        return None


def bill_file(cache: Cache, prepared: Prepared) -> Path:
    """Return the cached CycloneDX bill of an image."""
    return cache.root / "sbom" / f"{prepared.facts.get('files_digest', '').removeprefix('sha256:')}.1.6.cdx.json"


def built_image(
    cache: Cache,
    engine: str,
    reference: str,
    inputs: BuildInputs,
    inside: Callable[[Sequence[str]], str],
    facts: Mapping[str, str],
    stamp: str = "",
) -> Prepared:
    """Return an image built from ``inputs``, and write its bill of materials.

    The bill is made from the image's packages, the wheels, and the packages of library folders. ``inside`` runs a
    command in the image and returns its output. ``facts`` are those beyond its context's.
    """
    loader, packages = (inside([inputs.python_path, "-I", "-c", program]) for program in (LOADER, PACKAGES))
    facts = {**context_facts(inputs), **facts}
    prepared = Prepared(
        inputs.image.name, engine, reference, inputs.python_path, inputs.library_folders_in_image(), facts,
        inputs.folders.missing, frozenset(json.loads(loader)), stamp=stamp,
    )  # fmt: skip
    components = [
        *installed_packages(packages, inputs.debs),
        *locked_packages((*inputs.wheels.pins, *inputs.folders.pins), inputs.wheels.files),
    ]
    bill = bill_of_materials(prepared.image, facts["files_digest"], components)
    cache.write(bill_file(cache, prepared), json.dumps(bill, indent=1) + "\n")
    return prepared


def write_named_bill(cache: Cache, prepared: Prepared, target: Path, name: str, digest: str) -> None:
    """Write the bill to ``target`` for the image of a named environment with that digest."""
    bill = with_subject(cache.read_json(bill_file(cache, prepared)) or {}, name, digest)
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
