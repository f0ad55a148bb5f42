"""Make a run here from what a pack holds: its matrix, locks and bench, its plan and seed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, file_digest, remove_tree
from envmatrix.build.file_listing import store_listing
from envmatrix.bundle.archive import unpack
from envmatrix.bundle.images import image_files, load_packed_images
from envmatrix.bundle.manifest import Manifest
from envmatrix.bundle.programs import check_requirements_present, use_local_programs, use_packed_programs
from envmatrix.bundle.signature import verify_signature
from envmatrix.errors import StoreError, Where
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import NAME
from envmatrix.matrix.parse import parse
from envmatrix.results import Run, RunFolder
from envmatrix.results.anonymize import local_anonymizer
from envmatrix.results.run import LauncherOptions
from envmatrix.system import project
from envmatrix.system.atomic_files import read_text
from envmatrix.system.bench_options import folder_digest
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import read_bytes
from envmatrix.trials.comparison_sides import Side
from envmatrix.trials.experiment import Experiment, create_experiment

#: Says which machine the trials of a design will run on (None: this one).
HostFinder = Callable[[Matrix, Design, tuple[str, ...], LauncherOptions], Host | None]


@dataclass(frozen=True)
class OpenedPack:
    """A verified pack, unpacked into ``folder``. ``signed`` says in one line who vouches for it."""

    manifest: Manifest
    folder: Path
    signed: str

    @property
    def run(self) -> RunFolder:
        """The results of the packed run."""
        return RunFolder(self.folder / "run")


def open_pack(archive: Path, into: Path, signers: Path | None) -> OpenedPack:
    """Verify an archive and unpack it into ``into``, which is replaced only when everything is as promised."""
    into.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    try:
        manifest, text, signature = unpack(archive, temporary)
        signed = verify_signature(text, signature, signers, archive)
        run = RunFolder(temporary / "run").load()
        if folder_digest(temporary / "bench") != run.bench_digest:
            raise StoreError("its benchmark (bench/) is not the one that its run used", where=Where(archive))
        remove_tree(into)
        temporary.rename(into)
    finally:
        remove_tree(temporary)
    return OpenedPack(manifest, into, signed)


def begin_packed_run(
    pack: OpenedPack, results: Path, progress: ProgressCallback, place: HostFinder, *,
    launcher: str, asked: LauncherOptions, rebuild: bool, programs: Mapping[str, Path],
) -> Experiment:  # fmt: skip
    """Begin the plan of a pack again, with its seed, in its environments.

    Images that came with the pack are used as they are; the others are built from its own locks, and must hold the
    same files. With ``rebuild`` all are built, and may hold others.
    ``place`` says on which machine trials will run, ``asked`` what is asked of the launcher there (over what the packed
    run asked of the same one). Templates such as
    {physical_cores} are filled for that machine: the environment is the recipe, not its numbers. ``programs`` says in
    which folder this machine has the program of a workload. What the pack does not hold must be here before anything is
    built.
    """
    run = pack.run.load()
    matrix = use_packed_programs(parse(_local_matrix_text(pack), pack.folder / "matrix.yaml"), pack.folder)
    matrix = use_local_programs(matrix, run, programs)
    check_requirements_present(matrix, pack.run.load_for_resume(), pack.folder)
    engines = tuple(dict.fromkeys(arm.engine for arm in run.arms))
    design = packed_design(run, pack.run.run_file)
    asked = {**(run.launcher_options if run.launcher == launcher else {}), **asked}
    host = place(matrix, design, engines, asked)
    supplied_images = {} if rebuild else load_packed_images(pack.manifest, pack.folder)
    for file in sorted((pack.folder / "listings").glob("*.txt")):
        store_listing(Cache(project.cache_folder()), read_bytes(file).decode(errors="replace"))
    for (image, engine), prepared in supplied_images.items():
        progress(f"image {image} on {engine}: using {prepared.reference} from the pack")
    return create_experiment(
        matrix, design, engines, results, progress, tuple(sys.argv[1:]), launcher, host, launcher_options=asked,
        bench=pack.folder / "bench", given=supplied_images, sides=(Side(None, matrix, run=None if rebuild else run),),
    )  # fmt: skip


def packed_design(run: Run, file: Path) -> Design:
    """Return the design of a packed run, as it stood in the end; a StoreError for a name that is no folder's."""
    if not NAME.match(run.design.name):
        raise StoreError(f"{run.design.name!r} is not a valid name of a design", where=Where(file))
    return run.design


def built_image_digests(experiment: Experiment) -> Mapping[str, str]:
    """Return 'image@engine' -> sha256 of every image built here that is one file."""
    return {key: file_digest(path) for key, path in image_files(experiment.engines, experiment.prepared).items()}


def is_run_of_pack(pack: OpenedPack, folder: RunFolder) -> bool:
    """Whether a run was made with the matrix and the benchmark of a pack."""
    same_bench = folder.load().bench_digest == pack.run.load().bench_digest
    return same_bench and folder.names.real(folder.matrix()) == _local_matrix_text(pack)


def _local_matrix_text(pack: OpenedPack) -> str:
    """Return the matrix of a pack with this user's folders where it says {home} and {cache}."""
    return str(local_anonymizer().real(read_text(pack.folder / "matrix.yaml")))
