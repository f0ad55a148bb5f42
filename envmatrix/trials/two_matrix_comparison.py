"""Comparison of two matrices in one run: its sides, whether they are comparable, and the saved matrices."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.errors import InputError, NothingRanError
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import locate_key
from envmatrix.plan.environment import Environment, all_libraries, resolve_environment
from envmatrix.results import Run, RunFolder, write_whole
from envmatrix.results.run_model import SideOf
from envmatrix.trials.images import Images, build_places, check_images_unchanged, matrix_locks_folder, side_matrix_path


@dataclass(frozen=True)
class Side:
    """A matrix that environments come from. ``name``: ``old`` or ``new`` (None: the run has one matrix).

    ``file``: the file that was read, if it is not the one next to the locks and programs. ``run``: the named run, whose
    images must be the same.
    """

    name: str | None
    matrix: Matrix
    file: Path | None = None
    run: Run | None = None

    @property
    def matrix_file(self) -> Path:
        """The file to name in error messages."""
        return self.file or Path(self.matrix.path)

    def of_run(self) -> SideOf:
        """Return this side's entry in run.json."""
        libraries = all_libraries(self.matrix)
        return SideOf(matrix=str(self.matrix_file), matrix_digest=self.matrix.digest, libraries=libraries)


def two_side_design(design: Design, named: Sequence[str] | None) -> Design:
    """Return the design that compares the environments ``named`` (None: the baseline) of two sides.

    Steps, cells, further programs and races compare environments with one another: they are removed.
    """
    names = tuple(dict.fromkeys(named or (design.baseline,)))
    replaced_fields = {"factors": {}, "cumulative": (), "application": (), "reference_values": {}, "race": False}
    return design.model_copy(update={"environments": names, "baseline": names[0], **replaced_fields})


def check_comparable(sides: Sequence[Side], design: Design) -> None:
    """Raise InputError, with its location, for an environment that a side lacks, or a workload that differs."""
    for side in sides:
        for name in design.environments:
            try:
                resolve_environment(side.matrix, name, {})
            except InputError as error:
                location = locate_key(side.matrix_file, ("environments",))
                raise InputError(f"{side.name}: {error.message}", where=location, remedy=error.remedy) from error
    old, new = sides
    for name in design.workloads:
        old_workload, new_workload = old.matrix.workloads.get(name), new.matrix.workloads.get(name)
        if old_workload is None or new_workload is None or _work(old_workload) != _work(new_workload):
            key = ("workloads", name)
            difference = f"differs from the one in {locate_key(new.matrix_file, key)}" if old_workload else "is missing"
            raise InputError(
                f"workload {name!r} {difference}: only equal work can be compared",
                where=locate_key(old.matrix_file, key),
                remedy="pick a workload that is the same in both: --workloads NAME",
            )


def _work(workload: Workload) -> dict[str, object]:
    return workload.model_dump(exclude={"description", "files"})


def check_sides_available_and_unchanged(
    sides: Sequence[Side],
    environments_by_name: Mapping[str, Environment],
    prepared_images: Images,
    unavailable: Mapping[tuple[str, str], str],
) -> None:
    """Raise NothingRanError if a side is not available here, InputError for an image that differs from its run's."""
    if unavailable and any(side.name for side in sides):
        (environment, engine), reason = next(iter(unavailable.items()))
        raise NothingRanError(f"nothing to compare: {environment} is not available on {engine}: {reason}")
    for side in sides:
        if side.run:
            names = {env.image_key: env.image.name for env in environments_by_name.values() if env.side == side.name}
            images = {
                (names[image], engine): prepared
                for (image, engine), prepared in prepared_images.items()
                if image in names
            }
            check_images_unchanged(side.run, images)


def save_side_matrices(folder: RunFolder, sides: Sequence[Side], bench: Path) -> None:
    """Save the matrix and locks of each side, so that ``resume`` needs neither worktree nor checkout."""
    for side in sides:
        if side.name:
            matrix_file = side_matrix_path(folder, side.name)
            locks_folder = matrix_locks_folder(matrix_file)
            locks_folder.mkdir(parents=True, exist_ok=True)
            for file in sorted(build_places(Path(side.matrix.path), bench).locks.glob("*.txt")):
                shutil.copyfile(file, locks_folder / file.name)
            write_whole(matrix_file, side.matrix.text)
