"""Make a run here from what a pack holds: its matrix, locks and bench, its plan and seed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.engines.base import Say
from envmatrix.errors import StoreError, Where
from envmatrix.experiment import Experiment, begin
from envmatrix.images.cache import file_digest, remove_tree
from envmatrix.matrix import Design, load
from envmatrix.pack.archive import unpack
from envmatrix.pack.contents import image_files
from envmatrix.pack.manifest import Manifest
from envmatrix.pack.signature import verify
from envmatrix.project import bench_digest
from envmatrix.store import Run, RunFolder


@dataclass(frozen=True)
class Opened:
    """A verified pack, unpacked into ``folder``. ``signed`` says in one line who vouches for it."""

    manifest: Manifest
    folder: Path
    signed: str

    @property
    def run(self) -> RunFolder:
        """The results of the packed run."""
        return RunFolder(self.folder / "run")


def open_pack(archive: Path, into: Path, signers: Path | None) -> Opened:
    """Verify an archive and unpack it into ``into``, which is replaced only when everything is as promised."""
    into.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    try:
        manifest, text, signature = unpack(archive, temporary)
        signed = verify(text, signature, signers, archive)
        run = RunFolder(temporary / "run").load()
        if bench_digest(temporary / "bench") != run.bench_digest:
            raise StoreError("the benchmark in it is not the one its run used", where=Where(archive))
        remove_tree(into)
        temporary.rename(into)
    finally:
        remove_tree(temporary)
    return Opened(manifest, into, signed)


def begin_again(pack: Opened, results: Path, say: Say, command: tuple[str, ...]) -> Experiment:
    """Rebuild the environments of a pack from its own locks and begin its plan again, with its seed.

    Templates such as {physical_cores} are filled for this machine: the environment is the recipe, not its numbers.
    """
    run = pack.run.load()
    matrix = load(pack.folder / "matrix.yaml")
    design = Design.model_validate(dict(run.design))
    engines = tuple(dict.fromkeys(arm.engine for arm in run.plan.arms))
    return begin(matrix, design, engines, results, say, command, bench=pack.folder / "bench")


def built_images(experiment: Experiment) -> Mapping[str, str]:
    """Return 'image@engine' -> sha256 of every image built here that is one file."""
    return {key: file_digest(path) for key, path in image_files(experiment.prepared).items()}


def was_begun_from(pack: Opened, run: Run) -> bool:
    """Whether a run was made with the matrix and the benchmark of a pack."""
    packed = pack.run.load()
    return run.bench_digest == packed.bench_digest and run.matrix_text == packed.matrix_text
