"""Repeat a packed run on this machine, with its matrix, locks, benchmark, plan and seed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.cache import Cache, file_digest, remove_tree
from envmatrix.build.images.file_listing import store_listing
from envmatrix.build.package_locks import Locks
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.engines.base import Prepared
from envmatrix.errors import StoreError, Where
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import NAME
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import all_libraries
from envmatrix.results import Run, RunFolder
from envmatrix.results.anonymize import local_anonymizer
from envmatrix.runner.reproduction.pack_archive import Manifest, unpack
from envmatrix.runner.reproduction.pack_contents import (
    add_pack_to_wheelhouse,
    load_packed_images,
    mount_libraries,
    single_file_images,
)
from envmatrix.runner.reproduction.pack_programs import (
    check_inputs_outside_pack,
    use_local_programs,
    use_packed_programs,
)
from envmatrix.system import resource_paths
from envmatrix.system.atomic_files import read_text
from envmatrix.system.bench_options import folder_digest
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import read_bytes
from envmatrix.system.ssh_signatures import PACK, describe_signature
from envmatrix.trials.experiment_setup import Experiment, create_experiment
from envmatrix.trials.images import build_places
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.two_matrix_comparison import Side

#: Finds the machine that the trials of a design will run on (None: this one).
HostFinder = Callable[[Matrix, Design, tuple[str, ...], NewRun], Host | None]


@dataclass(frozen=True)
class OpenedPack:
    """A verified pack, unpacked into ``folder``. ``signed`` is one line about its signature."""

    manifest: Manifest
    folder: Path
    signed: str

    @property
    def packed_run(self) -> RunFolder:
        """The results of the packed run."""
        return RunFolder(self.folder / "run")


def open_pack(archive: Path, into: Path, signers: Path | None) -> OpenedPack:
    """Verify an archive and unpack it into ``into``, which is replaced only after all checks passed."""
    into.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    try:
        manifest, text, signature = unpack(archive, temporary)
        signed = describe_signature(text, signature, signers, archive, PACK)
        run = RunFolder(temporary / "run").load()
        if folder_digest(temporary / "bench") != run.bench_digest:
            raise StoreError("its benchmark (bench/) is not the one that its run used", where=Where(archive))
        remove_tree(into)
        temporary.rename(into)
    finally:
        remove_tree(temporary)
    return OpenedPack(manifest, into, signed)


def begin_packed_run(
    pack: OpenedPack, new_run: NewRun, find_host: HostFinder, *, rebuild: bool, programs: Mapping[str, Path]
) -> Experiment:
    """Begin the plan of a pack again, with its seed, in its environments.

    Packed images are used as they are. Others are built from the pack's locks and must contain the same files. With
    ``rebuild``, all images are built, and their files may differ.

    ``find_host`` finds the machine that will run the trials. The new run's launcher options override those of the
    packed run if the launcher is the same. Templates such as {physical_cores} are filled in for that machine.
    ``programs`` maps a workload to the folder of its program here. Anything that the pack lacks must be present before
    the build begins.
    """
    run = pack.packed_run.load()
    matrix = use_packed_programs(parse(_local_matrix_text(pack), pack.folder / "matrix.yaml"), pack.folder)
    matrix = use_local_programs(matrix, run, programs)
    check_inputs_outside_pack(matrix, pack.packed_run.load_for_resume(), pack.folder)
    engines = tuple(dict.fromkeys(arm.engine for arm in run.arms))
    design = packed_design(run, pack.packed_run.run_file)
    packed_options = run.launcher_options if run.launcher == new_run.launcher else {}
    options = {**packed_options, **new_run.launcher_options}
    new_run = replace(new_run, launcher_options=options, command=tuple(sys.argv[1:]))
    return create_experiment(
        matrix,
        design,
        engines,
        new_run,
        find_host(matrix, design, engines, new_run),
        bench=pack.folder / "bench",
        given=_import_images(pack, matrix, new_run.progress, rebuild=rebuild),
        sides=(Side(None, matrix, run=None if rebuild else run),),
    )


def _import_images(
    pack: OpenedPack, matrix: Matrix, progress: ProgressCallback, *, rebuild: bool
) -> dict[tuple[str, str], Prepared]:
    """Add a pack's file listings and libraries to the cache; return its images (none to ``rebuild``)."""
    cache = Cache(resource_paths.cache_folder())
    for file in sorted((pack.folder / "listings").glob("*.txt")):
        store_listing(cache, read_bytes(file).decode(errors="replace"))
    add_pack_to_wheelhouse(pack.folder, Wheelhouse(cache))
    images: dict[tuple[str, str], Prepared] = {}
    locks = Locks(build_places(pack.folder / "matrix.yaml", pack.folder / "bench").locks, cache, progress)
    for key, prepared in ({} if rebuild else load_packed_images(pack.manifest, pack.folder)).items():
        progress(f"image {key[0]} on {key[1]}: using {prepared.reference} from the pack")
        images[key] = mount_libraries(prepared, all_libraries(matrix), locks)
    return images


def packed_design(run: Run, file: Path) -> Design:
    """Return the final design of a packed run; raise a StoreError if its name cannot be a folder name."""
    if not NAME.match(run.design.name):
        raise StoreError(f"{run.design.name!r} is not a valid name of a design", where=Where(file))
    return run.design


def built_image_digests(experiment: Experiment) -> Mapping[str, str]:
    """Return 'image@engine' -> sha256 of every single-file image that was built here."""
    return {key: file_digest(path) for key, path in single_file_images(experiment.engines, experiment.prepared).items()}


def is_run_of_pack(pack: OpenedPack, folder: RunFolder) -> bool:
    """Return whether a run has the matrix and the benchmark of a pack."""
    same_bench = folder.load().bench_digest == pack.packed_run.load().bench_digest
    return same_bench and folder.names.real(folder.matrix()) == _local_matrix_text(pack)


def _local_matrix_text(pack: OpenedPack) -> str:
    """Return the matrix of a pack with {home} and {cache} replaced by this user's folders."""
    return str(local_anonymizer().real(read_text(pack.folder / "matrix.yaml")))
