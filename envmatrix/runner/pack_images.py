"""The image files of a pack, with the data needed to start them without a build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envmatrix.build.cache import file_stamp
from envmatrix.engines.base import Engine, HasImageFiles, Prepared
from envmatrix.engines.build_record import prepared_fields, prepared_from
from envmatrix.engines.catalog import ENGINES, find_engine
from envmatrix.errors import StoreError, Where
from envmatrix.runner.pack_archive import Content
from envmatrix.runner.pack_manifest import Manifest
from envmatrix.system.regular_files import read_bytes

Images = Mapping[tuple[str, str], Prepared]


def image_files(engines: Mapping[str, Engine], prepared: Images) -> dict[str, Path]:
    """Return the images that are single files (SIF, squashfs) as 'image@engine' -> file."""
    files = {}
    for (image, name), image_prepared in prepared.items():
        engine = engines[name]
        if isinstance(engine, HasImageFiles) and (file := engine.image_file(image_prepared)).is_file():
            files[f"{image}@{name}"] = file
    return files


def image_name(key: str, path: Path) -> str:
    """Return the name of an image file inside a pack."""
    return f"images/{key.replace('/', '_')}{path.suffix}"


def image_contents(engines: Mapping[str, Engine], prepared: Images) -> dict[str, Content]:
    """Return the image files by name, each with a JSON document that describes how to start it."""
    contents: dict[str, Content] = {}
    for key, path in image_files(engines, prepared).items():
        image, _, engine = key.rpartition("@")
        name = image_name(key, path)
        contents[name] = path
        body = prepared_fields(replace(prepared[image, engine], reference=name, stamp=""))
        contents[f"{name}.json"] = (json.dumps(body, indent=1) + "\n").encode()
    return contents


def load_packed_images(manifest: Manifest, folder: Path) -> dict[tuple[str, str], Prepared]:
    """Return the images of a pack unpacked into ``folder``, ready to start."""
    images = {}
    for key, bits in manifest.images.items():
        image, _, engine = key.rpartition("@")
        if "file" in bits and _starts_packed(engine):
            images[image, engine] = _load_packed_image(folder, bits["file"], image, engine)
    return images


def _starts_packed(name: str) -> bool:
    engine = find_engine(name) if name in ENGINES.names() else None
    return isinstance(engine, HasImageFiles) and engine.starts_packed


def _load_packed_image(folder: Path, name: str, image: str, engine: str) -> Prepared:
    file = folder / f"{name}.json"
    try:
        body: object = json.loads(read_bytes(file).decode())
    except (OSError, ValueError, RecursionError):
        body = None
    prepared = prepared_from(body)
    if prepared is None or (prepared.image, prepared.engine) != (image, engine) or prepared.reference != name:
        raise StoreError(
            f"{name} has no start command",
            where=Where(file),
            remedy="build the images on this machine instead: --rebuild",
        )
    path = (folder / name).resolve()
    return replace(prepared, reference=str(path), stamp=file_stamp(path))
