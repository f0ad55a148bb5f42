"""Packs: archives of a run, and the reproduction of a run from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.api.matrix_and_run_lookup import PathLike, find_matrix, find_run, parse_argument
from envmatrix.api.result import Result
from envmatrix.api.runs import Watch, check_has_answer, find_run_host, finish_run, line_progress_watch, run_path
from envmatrix.build.cache import file_digest
from envmatrix.build.package_locks import Locks
from envmatrix.durations_and_sizes import parse_bytes, percent_as_fraction
from envmatrix.engines.base import HasBills, HasImageFiles
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import ExitCode, InputError, StoreError, Where
from envmatrix.launchers.base import Ask
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder, write_whole
from envmatrix.results.redact import has_personal_names, redact
from envmatrix.results.run_model import LauncherOptions, Run
from envmatrix.runner.reproduction.pack_archive import Manifest, write_archive
from envmatrix.runner.reproduction.pack_contents import (
    collect_files,
    file_listing_contents,
    image_contents,
    library_contents,
    make_manifest,
    sbom_contents,
    single_file_images,
)
from envmatrix.runner.reproduction.pack_crate import CRATE_FILE, make_crate
from envmatrix.runner.reproduction.pack_programs import DEFAULT_MAX_BYTES, collect_programs, not_packed_texts
from envmatrix.runner.reproduction.pack_rerun import (
    OpenedPack,
    begin_packed_run,
    built_image_digests,
    is_run_of_pack,
    open_pack,
)
from envmatrix.runner.reproduction.reproduced_effects import Reproduction, compare_reproduction
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.ssh_signatures import PACK, sign_text
from envmatrix.trials.experiment_setup import Experiment, find_bench_copy, reopen_experiment
from envmatrix.trials.images import build_places
from envmatrix.trials.new_run_options import NewRun

_UNVERIFIED_NOTE = (
    "this runs the archive's own bench/ on this host and in its environments; neither --signers nor "
    "--sha256 was given to verify where it comes from"
)


@dataclass(frozen=True)
class PackResult:
    """A written archive; ``size`` is in bytes."""

    archive: Path
    sha256: str
    size: int
    signed: bool
    manifest: Manifest


def pack_run(
    run: PathLike | Result | None = None, *, output: PathLike | None = None, images: bool = False,
    libraries: bool = False, programs: int | str = DEFAULT_MAX_BYTES, key: Path | None = None,
    matrix: PathLike | None = None, results: PathLike = "results", progress: ProgressCallback = silent,
) -> PackResult:  # fmt: skip
    """Write one archive with everything that is needed to repeat a run on another machine.

    Args:
        run: a Result, a run's name or its folder; None: the newest run.
        output: the archive; None: RUN.tar.gz in the current folder.
        images: pack images that are files (SIF) too.
        libraries: pack the libraries that environments preload too.
        programs: pack files of the run's own programs up to this size: bytes, or text such as '1GiB'; 0: none.
        key: sign with this SSH key.
        matrix: whose locks and definitions are packed; None: ./matrix.yaml, otherwise the built-in one.
        results: the folder in which runs are searched by name.
        progress: receives lines of progress.

    Returns:
        The archive, its digest and its manifest.

    Raises:
        InputError: no such run, a file that it began with is gone or edited, or its programs exceed ``programs``.
        StoreError: a file cannot be read or written, or a line of trials.jsonl is not a trial of the run.

    """
    folder, matrix_file = find_run(run_path(run), results), find_matrix(matrix)
    packed_run, local_run = _load_checked_run(folder, progress)
    places = build_places(matrix_file, find_bench_copy(packed_run.bench_digest))
    contents = collect_files(folder, packed_run, matrix_file, places)
    contents |= collect_programs(local_run, parse_argument("programs", programs, parse_bytes) if programs else 0)
    files: dict[str, Path] = {}
    if any(isinstance(find_engine(arm.engine), (HasBills, HasImageFiles)) for arm in packed_run.plan.arms):
        experiment = reopen_experiment(folder, matrix_file, progress)
        files = single_file_images(experiment.engines, experiment.prepared)
        contents |= sbom_contents(experiment) | file_listing_contents(experiment, places.cache)
        contents |= image_contents(experiment.engines, experiment.prepared) if images else {}
        libraries |= images and any(prepared.mounted for prepared in experiment.prepared.values())
    if images and not files:
        progress("no image packed: this run has no image files")
    locks = Locks(places.locks, places.cache, progress)
    packages, lacking = library_contents(packed_run, locks, progress) if libraries else ({}, [])
    contents |= packages
    contents[CRATE_FILE] = make_crate(packed_run, contents)
    archive = Path(f"{packed_run.name}.tar.gz" if output is None else output)
    not_packed = (*not_packed_texts(local_run, contents, (archive, folder.path.parent)), *lacking)
    manifest = make_manifest(packed_run, contents, files, [*map(folder.names.without_user_folders, not_packed)])
    _report_left_out(manifest, progress)
    written = write_archive(archive, manifest, contents, sign_text(manifest.text(), key, PACK) if key else None)
    return PackResult(archive, written.sha256, written.size, key is not None, manifest)


def _load_checked_run(folder: RunFolder, progress: ProgressCallback) -> tuple[Run, Run]:
    """Return the run as stored, and with this machine's folders; read every trial, so that no invalid one is packed.

    Warn of personal names in it.
    """
    run = folder.load()
    for _ in folder.readings(run.plan):
        pass
    if has_personal_names(folder):
        remedy = f"run `envmatrix redact {run.name}`, then pack again"
        progress(f"the archive contains host names or user folders: {remedy}")
    return run, folder.load_for_resume()


def redact_run_in_place(
    run: PathLike | Result | None = None, *, results: PathLike = "results", progress: ProgressCallback = silent
) -> tuple[Result, tuple[str, ...]]:
    """Remove users, their folders and host names from a run, and rewrite its reports. Numbers do not change.

    Args:
        run: a Result, a run's name or its folder; None: the newest run.
        results: the folder in which runs are searched by name.
        progress: receives lines of progress.

    Returns:
        The Result, and the names of the files that changed.

    Raises:
        InputError: the run does not exist.
        StoreError: it cannot be read or written, or another envmatrix writes to it.

    """
    folder = find_run(run_path(run), results)
    changed = redact(folder)
    write_reports(RunFolder(folder.path), progress=progress)
    return Result.of(RunFolder(folder.path)), changed


def reproduce(
    archive: PathLike, run: PathLike | Result | None = None, *, sha256: str = "", signers: PathLike | None = None,
    tolerance: float | str = 0.05, rebuild: bool = False, programs: Mapping[str, PathLike] | None = None,
    results: PathLike = "results", launcher: str = "here", launcher_options: LauncherOptions | None = None,
    progress: ProgressCallback = silent,
) -> Reproduction:  # fmt: skip
    """Verify an archive of ``envmatrix pack``, run its plan here, and compare the effects of both runs.

    This runs the archive's code as you: use ``sha256`` or ``signers`` to name whom you trust.

    Args:
        archive: the file.
        run: an earlier run from this archive: compare it without running anything; None: run the plan.
        sha256: the digest that the archive must have.
        signers: a file of allowed signers (ssh-keygen); archives of others are refused.
        tolerance: effects this close agree: 0.05 or '5%'.
        rebuild: build images here even if they are in the archive; their files may differ from those of the packed run.
        programs: workload -> folder of its program on this machine, if the archive does not contain it.
        results: the folder for the unpacked archive and the run.
        launcher: the launcher of the trials.
        launcher_options: options of the launcher.
        progress: receives lines of progress.

    Returns:
        The Reproduction: differences between the runs, and whether each effect was reproduced. It is also written as
        reproduction.json into the new run's folder.

    Raises:
        InputError: no such file or run, or the run was not started from this archive.
        StoreError: the archive does not match its manifest; nothing of it is kept on disk.
        EngineError: an engine is missing or its build failed.
        NothingRanError: no trial was ok.
        InterruptedRunError: Ctrl-C ended the run; the message shows how to resume.

    """
    limit = parse_argument("tolerance", tolerance, percent_as_fraction)
    opened = open_archive(archive, sha256=sha256, signers=signers, results=results, progress=progress)
    earlier_run = run_path(run)
    if earlier_run is not None:
        return compare_again(opened, earlier_run, results, limit, progress)
    is_trusted = bool(sha256 or signers)
    new_run = NewRun(results, None, launcher, launcher_options or {}, progress=progress)
    new_experiment = begin_reproduction(opened, new_run, rebuild=rebuild, vouched=is_trusted, programs=programs)
    return finish_reproduction(opened, Path(archive), new_experiment, limit, line_progress_watch(progress))[0]


def open_archive(
    archive: PathLike, *, sha256: str = "", signers: PathLike | None = None, results: PathLike = "results",
    progress: ProgressCallback = silent,
) -> OpenedPack:  # fmt: skip
    """Verify an archive and unpack it in ``results``. Raises InputError and StoreError like ``reproduce``."""
    file = Path(archive)
    if not file.is_file():
        raise InputError(f"no such archive: {file}", remedy="create one: `envmatrix pack`")
    digest = file_digest(file)
    if sha256 and digest != sha256.lower().removeprefix("sha256:"):
        raise StoreError(
            "the sha256 of the archive differs from the one you passed",
            where=Where(file),
            remedy="download the archive again",
        )
    trusted = Path(signers) if signers is not None else None
    opened = open_pack(file, Path(results) / f"packed-{digest[:12]}", trusted)
    progress(f"{file}: {len(opened.manifest.files)} files match the manifest; {opened.signed}")
    _report_left_out(opened.manifest, progress)
    return opened


def _report_left_out(manifest: Manifest, progress: ProgressCallback) -> None:
    """Report what a pack leaves out, without the folders of the machine that packed it."""
    for line in manifest.left_out:
        progress(line)


def begin_reproduction(
    opened: OpenedPack,
    new_run: NewRun,
    *,
    rebuild: bool,
    vouched: bool,
    programs: Mapping[str, PathLike] | None = None,
) -> Experiment:
    """Create a run here from the plan of a verified archive. Raises the errors of ``reproduce``."""
    if not vouched:
        new_run.progress(_UNVERIFIED_NOTE)
    program_folders = {name: Path(folder) for name, folder in (programs or {}).items()}
    return begin_packed_run(opened, new_run, find_run_host, rebuild=rebuild, programs=program_folders)


def finish_reproduction(
    opened: OpenedPack, archive: Path, experiment: Experiment, tolerance: float, watch: Watch, ask: Ask | None = None
) -> tuple[Reproduction, Result]:
    """Run the plan of an archive and compare. Raises the errors of ``reproduce``."""
    result = finish_run(experiment, watch, ask)
    check_has_answer(result, f"envmatrix reproduce {archive} {result.name}")
    return _write_reproduction(opened, experiment, tolerance), result


def compare_again(
    opened: OpenedPack, run: PathLike, results: PathLike, tolerance: float, progress: ProgressCallback
) -> Reproduction:
    """Compare a verified archive with an earlier run of it. Raises the errors of ``reproduce``."""
    folder = find_run(run, results)
    if not is_run_of_pack(opened, folder):
        raise InputError(f"run {folder.path.name} was not started from this archive")
    experiment = reopen_experiment(folder, opened.folder / "matrix.yaml", progress)
    return _write_reproduction(opened, experiment, tolerance)


def bench_exit_code(run: PathLike, results: PathLike) -> ExitCode:
    """Return the exit code of ``envmatrix bench`` for the trials that a run has on disk."""
    return Result.of(find_run(run, results)).exit_code


def _write_reproduction(opened: OpenedPack, experiment: Experiment, tolerance: float) -> Reproduction:
    folders = (opened.packed_run, experiment.folder)
    comparison = compare_reproduction(folders, opened.manifest.images, built_image_digests(experiment), tolerance)
    write_whole(experiment.folder.path / "reproduction.json", json.dumps(comparison.to_json(), indent=1) + "\n")
    return comparison
