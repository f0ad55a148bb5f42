"""The user's own programs in a pack: their files as they were when the run began, and the files left out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath

from envmatrix.build.cache import file_digest
from envmatrix.build.modules import load_modules
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import InputError, StoreError, Where
from envmatrix.matrix import Matrix
from envmatrix.matrix.model import Workload
from envmatrix.results import Run
from envmatrix.runner.reproduction.pack_archive import Content, is_safe
from envmatrix.system.reading_with_retries import exists, read_with_retry

#: Default limit for all programs of a pack together, in bytes.
DEFAULT_MAX_BYTES = 64 * 2**20
PROGRAM_FOLDER = "program"


def collect_programs(run: Run, most: int = DEFAULT_MAX_BYTES) -> dict[str, Content]:
    """Return the program files of a run by their names in the pack, unchanged since the run began.

    Raise an InputError for a missing or edited file, or if the total exceeds ``most`` bytes. With 0, pack none.
    """
    contents: dict[str, Content] = {}
    for name, files in run.programs.items() if most else ():
        root = Path(run.workloads[name].files or "")
        for file, digest in files.items():
            _check_unchanged(name, root / file, digest)
            key = f"{PROGRAM_FOLDER}/{name}/{file}"
            if not is_safe(key):
                raise InputError(f"workload {name!r}: a pack cannot contain a file named {file!r}", remedy="rename it")
            contents[key] = root / file
    size = sum(path.stat().st_size for path in contents.values() if isinstance(path, Path))
    if size > most:
        raise InputError(
            f"the run's own programs have {size / 2**20:.1f} MiB, more than the limit of {most / 2**20:.1f} MiB",
            remedy=f"raise the limit: `envmatrix pack {run.name} --programs SIZE`, or leave them out: "
            "`--programs none`",
        )
    return contents


def _check_unchanged(name: str, file: Path, digest: str) -> None:
    if not _has_digest(file, digest):
        raise InputError(
            f"workload {name!r}: {file} has changed since the run began",
            remedy="restore it, or pack without programs: `--programs none`",
        )


def _has_digest(file: Path, digest: str) -> bool:
    return f"sha256:{read_with_retry(lambda: file_digest(file), file)}" == digest


def not_packed_texts(run: Run, packed: Mapping[str, Content], not_program: Iterable[Path] = ()) -> list[str]:
    """Return what the run needs but its pack lacks, each as a sentence.

    ``not_program`` are files and folders that envmatrix itself wrote, perhaps next to the program.
    """
    own_paths = {path.resolve() for path in not_program}
    return [
        *_requirement_texts(run),
        *(text for name in run.workloads for text in _unpacked_program_texts(run, name, packed, own_paths)),
    ]


def _requirement_texts(run: Run) -> Iterator[str]:
    machine, images = "the machine that reproduces the run", [entry.image for entry in run.environments.values()]
    for python in sorted(_required_interpreters(run)):
        yield f"interpreter {python} is not packed: install it, with its packages, on {machine}"
    for name in sorted({name for image in images for name in image.modules}):
        yield f"module {name} is not packed: {machine} must provide it"
    for path in sorted(_own_libraries(run)):
        yield f"library {path} is not packed: {machine} must have it at that path"
    for names in sorted({image.conda for image in images} - {()}):
        yield f"the conda packages {', '.join(names)} are not packed: `envmatrix reproduce` solves them again"


def _own_libraries(run: Run) -> set[str]:
    """Return the libraries that environments preload by an absolute path on this machine."""
    here = {arm.runs for arm in run.arms if find_engine(arm.engine).shares_files}
    preloads = (preload for name in here for preload in run.environments[name].preload)
    return {file for key, file in preloads if not key and "/" in file}


def _required_interpreters(run: Run) -> set[str]:
    images = (entry.image for entry in run.environments.values())
    return {image.interpreter for image in images if image.interpreter and not image.modules}


def _unpacked_program_texts(
    run: Run, name: str, packed: Mapping[str, Content], own_paths: Collection[Path]
) -> Iterator[str]:
    workload = run.workloads[name]
    if not workload.command:
        return
    if name in run.programs and not any(key.startswith(f"{PROGRAM_FOLDER}/{name}/") for key in packed):
        yield f"workload {name!r}: its program is not packed"
        return
    for word in outside_words(workload):
        yield f"workload {name!r}: {word} is not packed"
    packed_names = {PurePosixPath(file).parts[0] for file in run.programs.get(name, {})}
    root = Path(workload.files or "").resolve()
    others = set(_entries(root)) - packed_names - {"__pycache__"}
    other_entries = sorted(entry for entry in others if (root / entry).resolve() not in own_paths)
    if other_entries:
        more = f" and {len(other_entries) - 4} more" if len(other_entries) > 4 else ""
        reason = "neither Python files nor named by its command"
        yield f"workload {name!r}: not packed from its folder: {', '.join(other_entries[:4])}{more} ({reason})"


def _entries(folder: Path) -> list[str]:
    return read_with_retry(lambda: [entry.name for entry in os.scandir(folder)], folder) or []


def outside_words(workload: Workload) -> list[str]:
    """Return the words of a command that name a path outside the program's folder."""
    return [word for word in workload.command if PurePath(word).is_absolute() or ".." in PurePath(word).parts]


def use_packed_programs(matrix: Matrix, folder: Path) -> Matrix:
    """Return the matrix of a pack unpacked into ``folder``, with its workloads pointing to the packed programs."""
    folders = {name: folder / PROGRAM_FOLDER / name for name, workload in matrix.workloads.items() if workload.command}
    return _with_folders(matrix, {name: program for name, program in folders.items() if program.is_dir()})


def _with_folders(matrix: Matrix, folders: Mapping[str, Path]) -> Matrix:
    workloads = {
        name: matrix.workloads[name].model_copy(update={"files": str(folder.resolve())})
        for name, folder in folders.items()
    }
    return matrix.model_copy(update={"workloads": {**matrix.workloads, **workloads}})


def use_local_programs(matrix: Matrix, run: Run, folders: Mapping[str, Path]) -> Matrix:
    """Return the matrix with programs in ``folders`` of this machine; raise an InputError for an unusable one."""
    for name, folder in folders.items():
        if name not in run.workloads or not run.workloads[name].command:
            raise InputError(
                f"the packed run has no program {name!r}", remedy=f"it has: {', '.join(_program_names(run))}"
            )
        if not folder.is_dir():
            raise InputError(f"folder {folder} for the program of workload {name!r} does not exist")
    return _with_folders(matrix, folders)


def _program_names(run: Run) -> list[str]:
    return [name for name, workload in run.workloads.items() if workload.command] or ["none"]


def check_inputs_outside_pack(matrix: Matrix, run: Run, home: Path) -> None:
    """Raise, before anything is fetched, if something that the pack lacks is missing on this machine.

    Checked are interpreters, modules and the program files that the run began with. If the engine uses the host's
    files, paths in the command that lead outside the program's folder are checked too.
    """
    for python in sorted(_required_interpreters(run)):
        if shutil.which(Path(python).expanduser()) is None:
            raise InputError(
                f"the packed run uses the interpreter {python}, which is not in the pack and not on this machine",
                remedy="install it at that path, with the packages that the program imports",
            )
    for names in {entry.image.modules for entry in run.environments.values()} - {()}:
        load_modules(names)
    for name in _program_names(run) if run.workloads else ():
        if name in matrix.workloads and matrix.workloads[name].command:
            _check_program_files(matrix.workloads[name], run, home)


def _check_program_files(workload: Workload, run: Run, home: Path) -> None:
    root = (home / (workload.files or ".")).resolve()
    remedy = f"name its folder on this machine: `--program {workload.name}=FOLDER`"
    for file, digest in run.programs.get(workload.name, {}).items():
        if not exists(root / file):
            raise InputError(
                f"workload {workload.name!r}: {root / file} is not in the pack and does not exist on this machine",
                remedy=remedy,
            )
        if not _has_digest(root / file, digest):
            raise InputError(
                f"workload {workload.name!r}: {root / file} differs from the file that the run used", remedy=remedy
            )
    engines = {arm.engine for arm in run.arms if arm.workload == workload.name}
    uses_host_files = any(find_engine(engine).shares_files for engine in engines)
    for word in outside_words(workload) if uses_host_files else ():
        if not exists(root / word):
            raise StoreError(
                f"workload {workload.name!r}: its command names {word}, which is not in the pack and not on "
                "this machine",
                where=Where(root),
                remedy="copy it to that path",
            )
