"""The data sets, and how to get one on disk: download and verify it, or generate its stand-in.

Standard library only: the host runs this with its own Python before any environment exists. On disk a set is a folder
``<data-dir>/<name>/`` of four raw files (see ``PARTS``) and ``dataset.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from bench import downloads, stand_in_data
from bench.errors import BenchError, RunError
from bench.stand_in_data import Shape

PARTS = ("train-images", "train-labels", "test-images", "test-labels")


class DataSet(NamedTuple):
    """A data set: ``shape`` is (channels, height, width) of a uint8 image; ``digest`` covers the parts in order."""

    name: str
    shape: Shape
    classes: int
    train: int
    test: int
    stand_in: bool
    digest: str | None


class Prepared(NamedTuple):
    """A data set on disk: its folder, and the reason if it is the stand-in."""

    set: DataSet
    path: str
    reason: str | None


_FASHION, _CIFAR = ((1, 28, 28), 10, 60000, 10000), ((3, 32, 32), 10, 50000, 10000)
_FASHION_DIGEST = "sha256:4aa87a2f40185d5067f37d136bef1a1c0aaedeaf8b8b77143a1a373b3fe3ed41"
_CIFAR_DIGEST = "sha256:225275ae40f6b18495d112a302e8c4b668f5096fd1aad45e36e735542decc1b8"
SETS = {
    known.name: known
    for known in (
        # Real sets need no digest here: their published files have checksums.
        DataSet("fashion-mnist", *_FASHION, False, None),
        DataSet("cifar10", *_CIFAR, False, None),
        DataSet("fashion-mnist-stand-in", *_FASHION, True, _FASHION_DIGEST),
        DataSet("cifar10-stand-in", *_CIFAR, True, _CIFAR_DIGEST),
    )
}


def stand_in_name(name: str) -> str:
    """Return the name of the stand-in for ``name`` (the name itself if it is one)."""
    return name if SETS[name].stand_in else name + "-stand-in"


def prepare(name: str, data_dir: str, offline: bool = False) -> Prepared:
    """Install the set, or its stand-in if it cannot be downloaded, in ``data_dir``, complete and verified.

    Several processes may do this at once: each builds in its own folder, and the first rename wins. Raises BenchError
    for an unknown name or a folder that cannot be written.
    """
    if name not in SETS:
        raise BenchError(f"unknown data set {name!r}; known: {', '.join(SETS)}")
    prepared = find_set_or_stand_in(name, data_dir)
    if prepared and prepared.set.name == name and _is_verified(prepared):
        return prepared
    reason = None if SETS[name].stand_in else "downloads are off"
    if reason and not offline:
        try:
            return _install(SETS[name], data_dir, lambda data_set: downloads.fetch(data_set.name, _sizes(data_set)))
        except (OSError, EOFError, RunError) as error:
            reason = f"cannot download {name}: {getattr(error, 'reason', None) or error}"
    replacement = SETS[stand_in_name(name)]
    prepared = find_set_or_stand_in(replacement.name, data_dir)
    if prepared is None or not _is_verified(prepared):
        prepared = _install(replacement, data_dir, _generate)
    return prepared._replace(reason=reason)


def find_set_or_stand_in(name: str, data_dir: str) -> Prepared | None:
    """Return the set in ``data_dir``, otherwise its stand-in there, or None. Checks sizes only."""
    for candidate in (name, stand_in_name(name)):
        path = os.path.join(data_dir, candidate)
        try:
            with open(os.path.join(path, "dataset.json"), encoding="utf-8") as file:
                digest = json.load(file)["digest"]
            sizes = [os.path.getsize(part_path(path, part)) for part in PARTS]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        data_set = SETS[candidate]
        if sizes == _sizes(data_set) and data_set.digest in (None, digest):
            return Prepared(data_set._replace(digest=digest), path, None)
    return None


def part_path(folder: str, part: str) -> str:
    """Return the path of one of ``PARTS``: raw uint8, images row by row."""
    return os.path.join(folder, part + ".bin")


def images_digest(buffers: Iterable[bytes | bytearray]) -> str:
    """Return ``sha256:`` and the hash of the four parts in the order of ``PARTS``."""
    sha256 = hashlib.sha256()
    for buffer in buffers:
        sha256.update(buffer)
    return "sha256:" + sha256.hexdigest()


def _sizes(data_set: DataSet) -> list[int]:
    channels, height, width = data_set.shape
    image = channels * height * width
    return [data_set.train * image, data_set.train, data_set.test * image, data_set.test]


def _is_verified(prepared: Prepared) -> bool:
    return images_digest(_read(part_path(prepared.path, part)) for part in PARTS) == prepared.set.digest


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _install(data_set: DataSet, data_dir: str, produce: Callable[[DataSet], list[bytes]]) -> Prepared:
    try:
        os.makedirs(data_dir, exist_ok=True)
        building = tempfile.mkdtemp(prefix=f".{data_set.name}.", dir=data_dir)
    except OSError as error:
        raise BenchError(f"cannot write the data folder {data_dir}: {error.strerror}") from error
    try:
        buffers = produce(data_set)
        digest = images_digest(buffers)
        if data_set.digest not in (None, digest):
            raise RunError(f"{data_set.name} came out as {digest}, not {data_set.digest}")
        for part, buffer in zip(PARTS, buffers):
            with open(part_path(building, part), "wb") as file:
                file.write(buffer)
        facts = {"name": data_set.name, "stand_in": data_set.stand_in, "digest": digest, "shape": data_set.shape}
        with open(os.path.join(building, "dataset.json"), "w", encoding="utf-8") as description:
            json.dump(facts, description)
        os.chmod(building, 0o755)  # mkdtemp makes it private, but containers read it as another user
        return Prepared(data_set._replace(digest=digest), _move_into_place(building, data_dir, data_set), None)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _move_into_place(building: str, data_dir: str, data_set: DataSet) -> str:
    path = os.path.join(data_dir, data_set.name)
    for _ in range(3):
        with suppress(OSError):
            os.rename(building, path)
            return path
        existing = find_set_or_stand_in(data_set.name, data_dir)
        if existing and existing.path == path and _is_verified(existing):
            return path
        set_aside = tempfile.mkdtemp(prefix=f".{data_set.name}.broken.", dir=data_dir)
        with suppress(OSError):
            os.rename(path, os.path.join(set_aside, "was"))
        shutil.rmtree(set_aside, ignore_errors=True)
    raise BenchError(f"cannot replace the damaged data folder {path}: remove it by hand")


def _generate(data_set: DataSet) -> list[bytes]:
    return stand_in_data.generate(data_set.name, data_set.shape, data_set.classes, data_set.train, data_set.test)
