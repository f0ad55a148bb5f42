"""Experiments: create or reopen a run, with its arms, environments, engines, prepared images and folder."""

from __future__ import annotations

import datetime
import itertools
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache
from envmatrix.engines.base import Engine, Prepared
from envmatrix.errors import InputError, NothingRanError, Where, suggestion
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import Workload, factorial_cells
from envmatrix.plan import Arm, Plan, make_arms
from envmatrix.plan.environment import Environment, all_libraries, build_environment, resolve_environment
from envmatrix.plan.schedule import old_and_new_arms
from envmatrix.results import Run, RunFolder
from envmatrix.system import bench_options, resource_paths
from envmatrix.system.host import Host, format_cpus, parse_cpus, this_host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.data_preparation import data_folder, prepare_data_sets
from envmatrix.trials.feasibility import (
    arms_that_cannot_run,
    check_batch_split,
    check_home_access,
    environments_needing_newer_driver,
    resolve_program_folder,
)
from envmatrix.trials.images import (
    ImageBuilder,
    Images,
    check_images_unchanged,
    load_supplied_images,
    prepare_images,
    save_supplied_images,
    side_image_builders,
    side_matrix_path,
)
from envmatrix.trials.interleaving_eligibility import decide_schedule
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.two_matrix_comparison import Side, check_sides_available_and_unchanged, save_side_matrices
from envmatrix.trials.user_program import invocation
from envmatrix.trials.user_program.file_digests import program_files
from envmatrix.trials.user_program.passed_variables import check_passed_variables, pass_available_variables
from envmatrix.version import __version__

#: Attributes that place an environment's processes -> name of one item.
PLACEMENT_NAMES = {"cpus": "CPU", "memory_nodes": "memory node"}


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to run: the content of run.json, and the prepared images it needs on this machine.

    An image that disappears during the run is prepared again; everything else is constant. ``trial_run_s``: the seconds
    that a program of the command line took in its trial run, before this run.
    """

    run: Run
    folder: RunFolder
    engines: Mapping[str, Engine]
    prepared: dict[tuple[str, str], Prepared]
    bench: Path
    data: Path
    trial_run_s: float = 0.0

    @property
    def plan(self) -> Plan:
        """The current plan of the run."""
        return self.run.plan


def find_design(matrix: Matrix, name: str) -> Design:
    """Return the design called ``name``. Raises InputError with the known names."""
    if name not in matrix.designs:
        raise InputError(f"no design {name!r}", remedy=suggestion(name, matrix.designs))
    return matrix.designs[name]


def design_environments(matrix: Matrix, design: Design, facts: Mapping[str, str]) -> dict[str, Environment]:
    """Resolve every environment of a design, the baseline first."""
    if design.factors:
        levels_by_name = factorial_cells(design)
        return {name: build_environment(matrix, name, levels, facts) for name, levels in levels_by_name.items()}
    names = dict.fromkeys((design.baseline, *design.environments, *design.cumulative))
    return {name: resolve_environment(matrix, name, facts) for name in names}


def make_design_arms(design: Design, names: tuple[str, ...], engines: tuple[str, ...]) -> tuple[Arm, ...]:
    """Return the arms of a design whose environments are called ``names``."""
    return make_arms(names, design.workloads, engines, design.baseline, design.application)


def snapshot_bench(source: Path | None = None) -> tuple[str, Path]:
    """Copy ``bench`` into the cache under its digest, so that edits during a run do not affect the run."""
    source = source or resource_paths.bench_folder()
    digest = bench_options.folder_digest(source)
    target = _bench_copy_path(digest)
    Cache(resource_paths.cache_folder()).folder(
        target.parent, lambda place: _copy_bench(source, place / "bench", digest)
    )
    return digest, target


def _copy_bench(source: Path, target: Path, digest: str) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    if bench_options.folder_digest(target) != digest:
        raise InputError(f"{source} changed while it was being copied", remedy="try again")


def _bench_copy_path(digest: str) -> Path:
    return resource_paths.cache_folder() / "bench" / digest.removeprefix("sha256:")[:16] / "bench"


def find_image_builder(experiment: Experiment, environment: Environment) -> ImageBuilder:
    """Return the builder that can rebuild the image of an environment."""
    run, folder, side = experiment.run, experiment.folder, environment.side
    if side is None:
        return ImageBuilder(experiment.engines, run.libraries)
    return side_image_builders(folder, run, side_matrix_path(folder, side), experiment.bench)[side]


def create_experiment(
    matrix: Matrix, design: Design, engine_names: tuple[str, ...], new_run: NewRun, host: Host | None = None, *,
    bench: Path | None = None, given: Images | None = None, sides: Sequence[Side] = (), parts: int = 1,
    references_suffice: bool = False,
) -> Experiment:  # fmt: skip
    """Prepare everything a design needs and write run.json; nothing is measured yet.

    ``host`` is the machine that trials run on (None: this one). ``bench`` is the benchmark (None: the project's),
    ``given`` ready images. ``sides``: old and new for a comparison (``matrix`` is the new one's), or one, to name a run
    with its images. ``parts``: see ``Plan``. ``references_suffice``: begin it even if no other environment is
    available.
    """
    progress = new_run.progress
    digest, bench = snapshot_bench(bench)
    elsewhere, host = new_run.launcher if host else "", host or this_host()
    placed_workloads = _place_workloads(matrix, design)
    environments_by_name, arms = _resolve_sides(matrix, sides, design, engine_names, host)
    check_batch_split(arms, environments_by_name, placed_workloads)
    engines, prepared_images, unavailable = _prepare_sides(
        sides or (Side(None, matrix),), design, engine_names, environments_by_name, host, bench, given, progress
    )
    check_home_access(placed_workloads, engines)
    invocation.report_linked_folders(placed_workloads.values(), engines.values(), progress)
    unavailable_arms = {arm.name for arm in arms if (arm.runs, arm.engine) in unavailable}
    design, arms = decide_schedule(design, arms, environments_by_name, placed_workloads, engines, unavailable_arms)
    lacking_reasons = arms_that_cannot_run(arms, environments_by_name, placed_workloads, prepared_images, elsewhere)
    pinned_workloads = prepare_data_sets(placed_workloads, bench, progress)
    workloads = {name: pass_available_variables(entry, progress) for name, entry in pinned_workloads.items()}
    created = datetime.datetime.now(datetime.timezone.utc)
    run = Run(
        name=new_run.name or f"{design.name}-{created:%Y%m%d-%H%M%S}", created=created.isoformat(timespec="seconds"),
        design=design, arms=arms, matrix_digest=matrix.digest, bench_digest=digest, host=host,
        versions={"envmatrix": __version__}, environments=environments_by_name,
        workloads=workloads,
        programs={name: files for name, entry in workloads.items() if (files := program_files(entry))},
        libraries=all_libraries(matrix),
        images={f"{image}@{engine}": dict(prepared.facts) for (image, engine), prepared in prepared_images.items()},
        skipped=_skip_reasons(design, arms, unavailable, lacking_reasons, references_suffice=references_suffice),
        sides={side.name: side.of_run() for side in sides if side.name}, launcher=new_run.launcher,
        launcher_options=dict(new_run.launcher_options), parts=parts, command=new_run.command,
        shell_preload=os.environ.get("LD_PRELOAD", ""),
    )  # fmt: skip
    run, folder = _create_run_folder(run, Path(new_run.results), matrix, host_names=new_run.host_names)
    save_supplied_images(folder, given or {})
    save_side_matrices(folder, sides, bench)
    return Experiment(run, folder, engines, prepared_images, bench, data_folder())


def _resolve_sides(
    matrix: Matrix, sides: Sequence[Side], design: Design, engine_names: tuple[str, ...], host: Host
) -> tuple[dict[str, Environment], tuple[Arm, ...]]:
    """Return the environments of all sides by name, and the arms."""
    resolved = [
        environment.named_for_side(side.name)
        for side in sides or (Side(None, matrix),)
        for environment in resolve_on_host(host, side.matrix, design).values()
    ]
    environments_by_name = {environment.name: environment for environment in resolved}
    if len(sides) > 1:
        return environments_by_name, old_and_new_arms(design.environments, design.workloads, engine_names)
    return environments_by_name, make_design_arms(design, tuple(environments_by_name), engine_names)


def _prepare_sides(
    sides: Sequence[Side], design: Design, engine_names: tuple[str, ...], environments: Mapping[str, Environment],
    host: Host, bench: Path, given: Images | None, progress: ProgressCallback,
) -> tuple[Mapping[str, Engine], dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:  # fmt: skip
    """Return engines, ready images, and reasons per unavailable (environment, engine)."""
    builders = {
        side.name: ImageBuilder.open(engine_names, all_libraries(side.matrix), Path(side.matrix.path), bench)
        for side in sides
    }
    engines = next(reversed(builders.values())).engines
    unfit = environments_needing_newer_driver(environments, design.gpus) if host.kernel is not None else {}
    fit = {name: environment for name, environment in environments.items() if name not in unfit}
    prepared_images, unavailable = prepare_images(fit, builders, progress, given)
    unavailable |= {(name, engine): reason for name, reason in unfit.items() for engine in engine_names}
    check_sides_available_and_unchanged(sides, environments, prepared_images, unavailable)
    _report_unsized_shm(design, engines, progress)
    return engines, prepared_images, unavailable


def _report_unsized_shm(design: Design, engines: Mapping[str, Engine], progress: ProgressCallback) -> None:
    unsized = [name for name, engine in engines.items() if not engine.sizes_shm]
    if design.shm and unsized:
        progress(
            f"`shm` has no effect on {', '.join(unsized)}: the system sets the size of /dev/shm (usually half "
            "the memory)"
        )


def _skip_reasons(
    design: Design,
    arms: tuple[Arm, ...],
    unavailable: Mapping[tuple[str, str], str],
    lacking_reasons: Mapping[str, str],
    *,
    references_suffice: bool = False,
) -> dict[str, str]:
    """Return arm name -> why it cannot run.

    Raises NothingRanError if all cannot, none has a usable reference, or (unless ``references_suffice``) none is left
    to compare with it.
    """
    reasons = {arm.name: unavailable.get((arm.runs, arm.engine)) or lacking_reasons.get(arm.name) for arm in arms}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    if len(skipped) == len(arms):
        first_reason = next(iter(skipped.values()))
        raise NothingRanError(f"no environment of design {design.name!r} is available on this machine: {first_reason}")
    if all(arm.reference in skipped for arm in arms if arm.name not in skipped):
        name, reason = next((name, reason) for name, reason in skipped.items() if name in {a.reference for a in arms})
        raise NothingRanError(f"{name}, the reference of the others, is not available on this machine: {reason}")
    compared = [arm for arm in arms if arm.reference and not arm.is_control]
    if compared and not references_suffice and all(arm.name in skipped for arm in compared):
        raise none_available_error({arm.environment: skipped[arm.name] for arm in compared})
    return skipped


def none_available_error(reasons: Mapping[str, str]) -> NothingRanError:
    """Return the error of environments that are all unavailable, each with its reason and remedy."""
    name, reason = next(iter(reasons.items()))
    message, _, remedy = reason.partition("\n  -> ")
    return NothingRanError(
        f"none of {', '.join(reasons)} is available on this machine: {name}: {message}", remedy=remedy
    )


def _place_workloads(matrix: Matrix, design: Design) -> dict[str, Workload]:
    """Return the workloads of a design, with the existing folder of each user's program."""
    matrix_folder = Path(matrix.path).resolve().parent
    workload_names = (*design.workloads, *design.application)
    return {name: resolve_program_folder(matrix.workloads[name], matrix_folder) for name in workload_names}


def _create_run_folder(run: Run, results: Path, matrix: Matrix, *, host_names: bool) -> tuple[Run, RunFolder]:
    """Create the run's folder under a name that no other run has."""
    for attempt in itertools.count(1):
        name = run.name if attempt == 1 else f"{run.name}-{attempt}"
        folder = RunFolder(results / name)
        if not folder.path.exists():
            renamed_run = run.model_copy(update={"name": name})
            folder.create(renamed_run, matrix.text, Path(matrix.path).resolve().parent, host_names=host_names)
            return renamed_run, folder
    raise AssertionError


def confined_cpus(design: Design, host: Host) -> tuple[int, ...]:
    """Return the CPUs that a design confines its trials to (empty: all), checked against the machine."""
    if design.cpus is None:
        return ()
    try:
        cpus = parse_cpus(design.cpus)
    except ValueError as error:
        raise InputError(f"design {design.name!r}: cpus: {error}") from error
    _check_exists(f"design {design.name!r}", "CPU", cpus, host.cpus)
    return cpus


def resolve_on_host(host: Host, matrix: Matrix, design: Design) -> dict[str, Environment]:
    """Return the environments of a design on a machine. Raises InputError for missing CPUs or memory nodes."""
    environments_by_name = design_environments(matrix, design, host.facts(confined_cpus(design, host)))
    check_placement(environments_by_name.values(), host)
    return environments_by_name


def check_placement(resolved: Iterable[Environment], host: Host, kinds: Iterable[str] = PLACEMENT_NAMES) -> None:
    """Raise InputError for an environment whose CPUs or memory nodes the machine does not have."""
    for environment, kind in itertools.product(resolved, kinds):
        requested_text: str | None = getattr(environment, kind)
        available: tuple[int, ...] = getattr(host, kind)
        if requested_text is not None and "{" not in requested_text and available:
            _check_exists(
                f"environment {environment.name!r}", PLACEMENT_NAMES[kind], parse_cpus(requested_text), available
            )


def _check_exists(subject: str, kind: str, requested: Iterable[int], available: tuple[int, ...]) -> None:
    foreign = set(requested) - set(available)
    if foreign:
        raise InputError(
            f"{subject}: {kind} {min(foreign)} is not available to this process",
            remedy=f"choose among {format_cpus(available)}",
        )


def reopen_experiment(folder: RunFolder, matrix_path: Path, progress: ProgressCallback) -> Experiment:
    """Load an earlier run, and prepare on this machine what its remaining trials need.

    The environments are those of the run's start; ``matrix_path`` only locates the locks.
    """
    run = folder.load_for_resume()
    check_passed_variables(run.workloads.values())
    missing_names = sorted({arm.runs for arm in run.arms} - set(run.environments))
    if missing_names:
        message = f"environment {', '.join(missing_names)} is missing, but the run's plan uses it"
        raise InputError(message, where=Where(folder.run_file), remedy="restore it from a copy")
    bench = find_bench_copy(run.bench_digest)
    makers = side_image_builders(folder, run, matrix_path, bench)
    engines = next(reversed(makers.values())).engines
    prepared_images, unavailable = prepare_images(run.environments, makers, progress, load_supplied_images(folder))
    _check_images_available(run, unavailable)
    check_images_unchanged(run, prepared_images)
    prepare_data_sets(run.workloads, bench, progress)
    return Experiment(run, folder, engines, prepared_images, bench, data_folder())


def _check_images_available(run: Run, unavailable: Mapping[tuple[str, str], str]) -> None:
    """Raise NothingRanError for an image of the run that is no longer available."""
    for arm in run.arms:
        reason = unavailable.get((arm.runs, arm.engine))
        if reason and arm.name not in run.skipped:
            message = f"{arm.runs} is no longer available on {arm.engine}: {reason}"
            raise NothingRanError(message, remedy=f"fix this, then `envmatrix resume {run.name}`")


def find_bench_copy(digest: str) -> Path:
    """Return the copy of bench/ that a run began with. Raises InputError if it is gone."""
    current, bench = snapshot_bench()
    if current == digest:
        return bench
    bench_copy = _bench_copy_path(digest)
    if not bench_copy.exists():
        raise InputError(
            "bench/ has changed since this run started, and the cache no longer has the old copy",
            remedy="check out the version that started it, or start a new run",
        )
    return bench_copy
