"""From a design to something that can run: arms, environments, engines, prepared images, and the run's folder."""

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
from envmatrix.matrix.model import Workload, cells
from envmatrix.plan import Arm, Plan, make_arms
from envmatrix.plan import environment as environments
from envmatrix.plan.environment import Environment
from envmatrix.results import Run, RunFolder
from envmatrix.results.run import Asked
from envmatrix.system import bench_options, project
from envmatrix.system.host import Host, format_cpus, parse_cpus, this_host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.comparison_sides import Side, arms_of_sides, check_sides, keep_sides
from envmatrix.trials.data import pinned_workload, prepare_data, wanted_data
from envmatrix.trials.feasibility import check_homes, check_shares, lacking_quota, lacking_torch, placed_workload
from envmatrix.trials.images import (
    Images,
    Maker,
    check_same_bits,
    keep_given,
    kept_given,
    kept_matrix,
    libraries_of,
    makers_of,
    prepare_sides,
)
from envmatrix.trials.interleaving_eligibility import with_schedule
from envmatrix.trials.program_files import program_files
from envmatrix.trials.program_variables import check_passing, settled_passing
from envmatrix.version import __version__

#: What places an environment's processes on a machine, and what one of it is called.
PLACEMENTS = {"cpus": "CPU", "memory_nodes": "memory node"}


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to go on: what run.json says, and the prepared images it needs on this machine.

    An image that is lost in the middle of a run is prepared again; all else stays as it is.
    """

    run: Run
    folder: RunFolder
    engines: Mapping[str, Engine]
    prepared: dict[tuple[str, str], Prepared]
    bench: Path
    data: Path

    @property
    def plan(self) -> Plan:
        """The plan of the run, as it stands."""
        return self.run.plan


def find_design(matrix: Matrix, name: str) -> Design:
    """Return the design called ``name``, or an InputError that says which there are."""
    if name not in matrix.designs:
        raise InputError(f"no design {name!r}", remedy=suggestion(name, matrix.designs))
    return matrix.designs[name]


def design_environments(matrix: Matrix, design: Design, facts: Mapping[str, str]) -> dict[str, Environment]:
    """Resolve every environment of a design, the baseline first."""
    if design.factors:
        found = cells(design)
        return {name: environments.build(matrix, name, chosen, facts) for name, chosen in found.items()}
    names = dict.fromkeys((design.baseline, *design.environments, *design.cumulative))
    return {name: environments.resolve(matrix, name, facts) for name in names}


def arms_of(design: Design, names: tuple[str, ...], engines: tuple[str, ...]) -> tuple[Arm, ...]:
    """Return the arms of a design whose environments are called ``names``."""
    return make_arms(names, design.workloads, engines, design.baseline, design.application)


def snapshot_bench(source: Path | None = None) -> tuple[str, Path]:
    """Copy ``bench`` into the cache under its digest, so that an edit during a run changes nothing in it."""
    source = source or project.bench_folder()
    digest = bench_options.folder_digest(source)
    target = _bench_copy(digest)
    Cache(project.cache_folder()).folder(
        target.parent,
        lambda place: _copy_bench(source, place / "bench", digest),
    )
    return digest, target


def _copy_bench(source: Path, target: Path, digest: str) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    if bench_options.folder_digest(target) != digest:
        raise InputError(f"{source} was changed while it was copied", remedy="try again")


def _bench_copy(digest: str) -> Path:
    return project.cache_folder() / "bench" / digest.removeprefix("sha256:")[:16] / "bench"


def maker_of(experiment: Experiment, environment: Environment) -> Maker:
    """Return what makes the image of an environment again."""
    run, folder = experiment.run, experiment.folder
    if environment.side is None:
        return Maker(experiment.engines, libraries_of(folder, run))
    return makers_of(folder, run, kept_matrix(folder, environment.side), experiment.bench)[environment.side]


def begin(
    matrix: Matrix,
    design: Design,
    engine_names: tuple[str, ...],
    results: Path,
    progress: ProgressCallback,
    command: tuple[str, ...],
    launcher: str = "here",
    host: Host | None = None,
    launcher_options: Asked | None = None,
    bench: Path | None = None,
    name: str | None = None,
    given: Images | None = None,
    sides: Sequence[Side] = (),
    *,
    host_names: bool = False,
    parts: int = 1,
) -> Experiment:
    """Prepare everything a design needs and write run.json; nothing has been measured yet.

    ``host`` is the machine that trials run on (None: this one), ``launcher_options`` what was asked of the launcher,
    ``bench`` the benchmark (None: the project's), ``name`` the run's (None: design and time), ``given`` ready images.
    ``sides``: old and new (``matrix`` is the new one's), where two are compared; or one, to name a run with its images.
    ``host_names``: the run calls hosts what they are called, and not node-1. ``parts``: see ``Plan``.
    """
    digest, bench = snapshot_bench(bench)
    elsewhere = launcher if host else ""
    placed, host = _placed(matrix, design), host or this_host()
    about = (host, matrix, sides, design, engine_names, bench, progress)
    ready, missing, chosen, arms, engines = _prepared(*about, given or {}, placed)
    gone = {arm.name for arm in arms if (arm.runs, arm.engine) in missing}
    design, arms = with_schedule(design, arms, chosen, placed, engines, gone)
    lacking = {**lacking_torch(arms, chosen, placed, ready), **lacking_quota(arms, chosen, elsewhere)}
    created = datetime.datetime.now(datetime.timezone.utc)
    run = Run(
        name=name or f"{design.name}-{created:%Y%m%d-%H%M%S}",
        created=created.isoformat(timespec="seconds"),
        design=design,
        arms=arms,
        matrix_digest=matrix.digest,
        bench_digest=digest,
        host=host,
        versions={"envmatrix": __version__},
        environments=chosen,
        workloads=(workloads := _pinned(placed, bench, progress)),
        programs={name: files for name, entry in workloads.items() if (files := program_files(entry))},
        libraries=environments.all_libraries(matrix),
        images={f"{image}@{engine}": dict(done.facts) for (image, engine), done in ready.items()},
        skipped=_skipped(design, arms, missing, lacking),
        sides={side.name: side.of_run() for side in sides if side.name},
        launcher=launcher,
        launcher_options=dict(launcher_options or {}),
        parts=parts,
        command=command,
        shell_preload=os.environ.get("LD_PRELOAD", ""),
    )
    run, folder = _new_folder(run, results, matrix, host_names=host_names)
    keep_given(folder, given or {})
    keep_sides(folder, sides, bench)
    return Experiment(run, folder, engines, ready, bench, _data_folder())


def _prepared(
    host: Host,
    matrix: Matrix,
    sides: Sequence[Side],
    design: Design,
    names: tuple[str, ...],
    bench: Path,
    progress: ProgressCallback,
    given: Images,
    placed: Mapping[str, Workload],
) -> tuple[
    dict[tuple[str, str], Prepared],
    dict[tuple[str, str], str],
    dict[str, Environment],
    tuple[Arm, ...],
    Mapping[str, Engine],
]:
    """Return what ``prepare_sides`` does, the environments of all sides by their names in the run, arms and engines."""
    whole = sides or (Side(None, matrix),)
    found = [one.of_side(side.name) for side in whole for one in environments_on(host, side.matrix, design).values()]
    chosen = {environment.name: environment for environment in found}
    arms = arms_of_sides(design, names) if len(sides) > 1 else arms_of(design, tuple(chosen), names)
    check_shares(arms, chosen, placed)
    makers = {side.name: side.maker(names, bench) for side in whole}
    engines = next(reversed(makers.values())).engines
    ready, missing = prepare_sides(chosen, makers, progress, given)
    check_sides(sides, chosen, ready, missing)
    check_homes(placed, engines)
    _say_what_shm_does_not(design, engines, progress)
    return ready, missing, chosen, arms, engines


def _say_what_shm_does_not(design: Design, engines: Mapping[str, Engine], progress: ProgressCallback) -> None:
    unsized = [name for name, engine in engines.items() if not engine.sizes_shm]
    if design.shm and unsized:
        progress(
            f"`shm` has no effect on {', '.join(unsized)}: /dev/shm is what the system gives (usually half the memory)"
        )


def _skipped(
    design: Design, arms: tuple[Arm, ...], missing: Mapping[tuple[str, str], str], lacking: Mapping[str, str]
) -> dict[str, str]:
    """Return arm name -> why it cannot run here; NothingRanError when none can, or none beside its reference."""
    found = {arm.name: missing.get((arm.runs, arm.engine)) or lacking.get(arm.name) for arm in arms}
    skipped = {name: reason for name, reason in found.items() if reason}
    if len(skipped) == len(arms):
        first = next(iter(skipped.values()))
        raise NothingRanError(f"no environment of design {design.name!r} can be had here: {first}")
    if all(arm.reference in skipped for arm in arms if arm.name not in skipped):
        name, reason = next((name, reason) for name, reason in skipped.items() if name in {a.reference for a in arms})
        raise NothingRanError(f"{name}, which the others are compared with, cannot be had here: {reason}")
    return skipped


def _placed(matrix: Matrix, design: Design) -> dict[str, Workload]:
    """Return the workloads of a design, those with a program of the user's own with its folder, which is there."""
    home = Path(matrix.path).resolve().parent
    chosen = (*design.workloads, *design.application)
    return {name: placed_workload(matrix.workloads[name], home) for name in chosen}


def _pinned(placed: Mapping[str, Workload], bench: Path, progress: ProgressCallback) -> dict[str, Workload]:
    """Return workloads as run.json keeps them, their data sets made ready and named."""
    names = prepare_data(bench, _data_folder(), _data_of(placed.values()), progress)
    return {name: settled_passing(pinned_workload(entry, names), progress) for name, entry in placed.items()}


def _data_of(workloads: Iterable[Workload]) -> list[str | None]:
    """Return the data sets that the built-in workloads among these ask for."""
    return [wanted_data(workload) for workload in workloads if not workload.command]


def _data_folder() -> Path:
    return project.cache_folder() / "data"


def _new_folder(run: Run, results: Path, matrix: Matrix, *, host_names: bool) -> tuple[Run, RunFolder]:
    """Create the run's folder under a name that no other run has."""
    for attempt in itertools.count(1):
        name = run.name if attempt == 1 else f"{run.name}-{attempt}"
        folder = RunFolder(results / name)
        if not folder.path.exists():
            named = run.model_copy(update={"name": name})
            folder.create(named, matrix.text, Path(matrix.path).resolve().parent, host_names=host_names)
            return named, folder
    raise AssertionError


def confined(design: Design, host: Host) -> tuple[int, ...]:
    """Return the CPUs that a design confines its trials to (empty: all), checked against the machine."""
    if design.cpus is None:
        return ()
    try:
        cpus = parse_cpus(design.cpus)
    except ValueError as error:
        raise InputError(f"design {design.name!r}: cpus: {error}") from error
    _check_there(f"design {design.name!r}", "CPU", cpus, host.cpus)
    return cpus


def environments_on(host: Host, matrix: Matrix, design: Design) -> dict[str, Environment]:
    """Return the environments of a design on a machine; an InputError names what it does not have."""
    chosen = design_environments(matrix, design, host.facts(confined(design, host)))
    check_placement(chosen.values(), host)
    return chosen


def check_placement(chosen: Iterable[Environment], host: Host, kinds: Iterable[str] = PLACEMENTS) -> None:
    """Raise InputError for an environment whose CPUs or memory nodes the machine does not have."""
    for environment, kind in itertools.product(chosen, kinds):
        written: str | None = getattr(environment, kind)
        there: tuple[int, ...] = getattr(host, kind)
        if written is not None and "{" not in written and there:
            _check_there(f"environment {environment.name!r}", PLACEMENTS[kind], parse_cpus(written), there)


def _check_there(what: str, kind: str, wanted: Iterable[int], there: tuple[int, ...]) -> None:
    foreign = set(wanted) - set(there)
    if foreign:
        raise InputError(
            f"{what}: this machine has no {kind} {min(foreign)} for this process",
            remedy=f"choose among {format_cpus(there)}",
        )


def reopen(folder: RunFolder, matrix_path: Path, progress: ProgressCallback) -> Experiment:
    """Load a run that was begun earlier, and prepare on this machine what its remaining trials need.

    The environments are those the run began with; of today's matrix only the place of its locks is used.
    """
    run = folder.load_here()
    check_passing(run.workloads.values())
    lacking = sorted({arm.runs for arm in run.arms} - set(run.environments))
    if lacking:
        said = f"environment {', '.join(lacking)} is missing, which an arm names"
        raise InputError(said, where=Where(folder.run_file), remedy="restore it from a copy")
    bench = kept_bench(run.bench_digest)
    makers = makers_of(folder, run, matrix_path, bench)
    engines = next(reversed(makers.values())).engines
    ready, missing = prepare_sides(run.environments, makers, progress, kept_given(folder))
    _check_still_there(run, missing)
    check_same_bits(run, ready)
    prepare_data(bench, _data_folder(), _data_of(run.workloads.values()), progress)
    return Experiment(run, folder, engines, ready, bench, _data_folder())


def _check_still_there(run: Run, missing: Mapping[tuple[str, str], str]) -> None:
    """Raise NothingRanError for an image that the run began with and that cannot be had any more."""
    for arm in run.arms:
        reason = missing.get((arm.runs, arm.engine))
        if reason and arm.name not in run.skipped:
            said = f"{arm.runs} cannot be had on {arm.engine} any more: {reason}"
            raise NothingRanError(said, remedy=f"when that is mended, `envmatrix resume {run.name}` goes on")


def kept_bench(digest: str) -> Path:
    """Return the copy of bench/ that a run began with, or an InputError when it is gone."""
    current, bench = snapshot_bench()
    if current == digest:
        return bench
    kept = _bench_copy(digest)
    if not kept.exists():
        raise InputError(
            "bench/ has changed since this run began, and the old copy is gone from the cache",
            remedy="check out the version that began it, or begin a new run",
        )
    return kept
