"""From a design to something that can run: arms, environments, engines, prepared images, and the run's folder."""

from __future__ import annotations

import datetime
import itertools
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix import __version__, benchmark, project
from envmatrix.engines.base import Engine, Prepared, library_path
from envmatrix.engines.build_record import prepared_from, recorded
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EngineError, InputError, NothingRanError, SkipEnvironmentError, suggestion
from envmatrix.host import Host, format_cpus, has_gpu, parse_cpus, this_host
from envmatrix.images.cache import Cache
from envmatrix.images.places import Places
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import Workload, cells
from envmatrix.matrix.parse import parse
from envmatrix.plan import Arm, Plan, make_arms
from envmatrix.plan import environment as environments
from envmatrix.plan.environment import Environment, Library
from envmatrix.say import Say
from envmatrix.store import Run, RunFolder, read_json, write_whole
from envmatrix.store.run import Asked
from envmatrix.trials.data import pinned_workload, prepare_data, wanted_data
from envmatrix.trials.possible import check_shares, placed_workload
from envmatrix.trials.program_files import program_files

#: Images that a run did not build (they came with a pack), beside its run.json.
_GIVEN = "images.json"


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


def prepare_images(
    chosen: Mapping[str, Environment],
    engines: Mapping[str, Engine],
    libraries: tuple[Library, ...],
    say: Say,
    given: Mapping[tuple[str, str], Prepared] | None = None,
) -> tuple[dict[tuple[str, str], Prepared], dict[tuple[str, str], str]]:
    """Build every image on every engine; return what is ready and, per (environment, engine), why it is not.

    ``given`` (image, engine) is ready already.
    """
    ready: dict[tuple[str, str], Prepared] = dict(given or {})
    missing: dict[tuple[str, str], str] = {}
    failures: dict[tuple[str, str], str] = {}
    for engine in engines.values():
        for env in chosen.values():
            key = (env.image.name, engine.name)
            try:
                if key not in ready and key not in failures:
                    ready[key] = engine.prepare(env.image, libraries, say)
                if key in ready:
                    check_libraries(ready[key], env)
            except (SkipEnvironmentError, EngineError) as error:
                if key not in ready:
                    failures[key] = str(error)
                missing[env.name, engine.name] = str(error)
            if key in failures:
                missing[env.name, engine.name] = failures[key]
    return ready, missing


def check_libraries(prepared: Prepared, env: Environment) -> None:
    """Find every library that ``env`` preloads, or raise SkipEnvironmentError with the install lines."""
    for key, file in env.preload:
        library_path(prepared, key, file)


def open_engines(names: Iterable[str], places: Places) -> dict[str, Engine]:
    """Find the engines and make sure that each can be used here."""
    engines = {name: find_engine(name, places) for name in names}
    for name, engine in engines.items():
        reason = engine.unavailable()
        if reason:
            raise EngineError(f"engine {name} cannot be used here: {reason}", remedy="`envmatrix doctor` says more")
    return engines


def snapshot_bench(source: Path | None = None) -> tuple[str, Path]:
    """Copy ``bench`` into the cache under its digest, so that an edit during a run changes nothing in it."""
    source = source or project.bench_folder()
    digest = benchmark.folder_digest(source)
    target = _bench_copy(digest)
    Cache(project.cache_folder()).folder(
        target.parent,
        lambda place: _copy_bench(source, place / "bench", digest),
    )
    return digest, target


def _copy_bench(source: Path, target: Path, digest: str) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    if benchmark.folder_digest(target) != digest:
        raise InputError(f"{source} was changed while it was copied", remedy="try again")


def _bench_copy(digest: str) -> Path:
    return project.cache_folder() / "bench" / digest.removeprefix("sha256:")[:16] / "bench"


def begin(
    matrix: Matrix,
    design: Design,
    engine_names: tuple[str, ...],
    results: Path,
    say: Say,
    command: tuple[str, ...],
    launcher: str = "here",
    host: Host | None = None,
    launcher_options: Asked | None = None,
    bench: Path | None = None,
    name: str | None = None,
    given: Mapping[tuple[str, str], Prepared] | None = None,
) -> Experiment:
    """Prepare everything a design needs and write run.json; nothing has been measured yet.

    ``host`` is the machine that trials run on (None: this one), ``launcher_options`` what was asked of the launcher,
    ``bench`` the benchmark (None: the project's), ``name`` the run's (None: design and time), ``given`` ready images.
    """
    digest, bench = snapshot_bench(bench)
    chosen = environments_on(host := host or this_host(), matrix, design)
    arms, placed = arms_of(design, tuple(chosen), engine_names), _placed(matrix, design)
    check_shares(arms, chosen, placed)
    engines = open_engines(engine_names, places_of(Path(matrix.path), bench))
    libraries = environments.all_libraries(matrix)
    ready, missing = prepare_images(chosen, engines, libraries, say, given)
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
        workloads=(workloads := _pinned(placed, bench, say)),
        programs={name: files for name, entry in workloads.items() if (files := program_files(entry))},
        libraries=libraries,
        images={f"{image}@{engine}": dict(done.facts) for (image, engine), done in ready.items()},
        skipped=_skipped(design, arms, missing),
        launcher=launcher,
        launcher_options=dict(launcher_options or {}),
        command=command,
    )
    _say_what_shm_does_not(design, engines, say)
    run, folder = _new_folder(run, results, matrix)
    keep_given(folder, given or {})
    return Experiment(run, folder, engines, ready, bench, _data_folder())


def _say_what_shm_does_not(design: Design, engines: Mapping[str, Engine], say: Say) -> None:
    unsized = [name for name, engine in engines.items() if not engine.sizes_shm]
    if design.shm and unsized:
        say(f"`shm` has no effect on {', '.join(unsized)}: /dev/shm is what the system gives (usually half the memory)")


def _skipped(design: Design, arms: tuple[Arm, ...], missing: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return arm name -> why it cannot run here; NothingRanError when none can."""
    skipped = {arm.name: reason for arm in arms if (reason := missing.get((arm.runs, arm.engine)))}
    if len(skipped) == len(arms):
        first = next(iter(skipped.values()))
        if design.gpus and not has_gpu():
            raise NothingRanError(
                f"design {design.name!r} asks for GPUs, and this machine has none that it shows (no /dev/nvidia*)",
                remedy=f"run it where there is one; there, this would be next: {first}",
            )
        raise NothingRanError(f"no environment of design {design.name!r} can be had here: {first}")
    return skipped


def _placed(matrix: Matrix, design: Design) -> dict[str, Workload]:
    """Return the workloads of a design, those with a program of the user's own with its folder, which is there."""
    home = Path(matrix.path).resolve().parent
    chosen = (*design.workloads, *design.application)
    return {name: placed_workload(matrix.workloads[name], home) for name in chosen}


def _pinned(placed: Mapping[str, Workload], bench: Path, say: Say) -> dict[str, Workload]:
    """Return workloads as run.json keeps them, their data sets made ready and named."""
    names = prepare_data(bench, _data_folder(), _data_of(placed.values()), say)
    return {name: pinned_workload(entry, names) for name, entry in placed.items()}


def _data_of(workloads: Iterable[Workload]) -> list[str | None]:
    """Return the data sets that the built-in workloads among these ask for."""
    return [wanted_data(workload) for workload in workloads if not workload.command]


def _data_folder() -> Path:
    return project.cache_folder() / "data"


def _new_folder(run: Run, results: Path, matrix: Matrix) -> tuple[Run, RunFolder]:
    """Create the run's folder under a name that no other run has."""
    for attempt in itertools.count(1):
        name = run.name if attempt == 1 else f"{run.name}-{attempt}"
        folder = RunFolder(results / name)
        if not folder.path.exists():
            named = run.model_copy(update={"name": name})
            folder.create(named, matrix.text, Path(matrix.path).resolve().parent)
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
    _check_cpus(f"design {design.name!r}", cpus, host)
    return cpus


def environments_on(host: Host, matrix: Matrix, design: Design) -> dict[str, Environment]:
    """Return the environments of a design on a machine; an InputError names what it does not have."""
    chosen = design_environments(matrix, design, host.facts(confined(design, host)))
    check_placement(chosen.values(), host)
    return chosen


def check_placement(chosen: Iterable[Environment], host: Host) -> None:
    """Raise InputError for an environment that starts on CPUs that the machine does not have."""
    for environment in chosen:
        if environment.cpus is not None and "{" not in environment.cpus:
            _check_cpus(f"environment {environment.name!r}", parse_cpus(environment.cpus), host)


def _check_cpus(what: str, cpus: Iterable[int], host: Host) -> None:
    foreign = set(cpus) - set(host.cpus)
    if foreign:
        raise InputError(
            f"{what}: this machine has no CPU {min(foreign)} for this process",
            remedy=f"choose among {format_cpus(host.cpus)}",
        )


def reopen(folder: RunFolder, matrix_path: Path, say: Say) -> Experiment:
    """Load a run that was begun earlier, and prepare on this machine what its remaining trials need.

    The environments are those the run began with; of today's matrix only the place of its locks is used.
    """
    run = folder.load_here()
    bench = kept_bench(run.bench_digest)
    engines = open_engines(dict.fromkeys(arm.engine for arm in run.arms), places_of(matrix_path, bench))
    ready, _ = prepare_images(run.environments, engines, libraries_of(folder, run), say, kept_given(folder))
    check_same_bits(run, ready)
    prepare_data(bench, _data_folder(), _data_of(run.workloads.values()), say)
    return Experiment(run, folder, engines, ready, bench, _data_folder())


def libraries_of(folder: RunFolder, run: Run) -> tuple[Library, ...]:
    """Return the libraries that a run's images hold: those of its whole matrix, also of levels that it left out."""
    if run.libraries is not None:
        return run.libraries
    return environments.all_libraries(parse(str(folder.names.real(folder.matrix())), folder.run_file))


def check_same_bits(run: Run, ready: Mapping[tuple[str, str], Prepared]) -> None:
    """Raise InputError for an image that holds other versions than when the run began: one run, one set of bits."""
    for (image, engine), prepared in ready.items():
        for name, before in run.images.get(f"{image}@{engine}", {}).items():
            now = prepared.facts.get(name)
            if name.startswith(("package ", "system ", "base_digest")) and now != before:
                raise InputError(
                    f"image {image} on {engine} is not what this run began with: {name} is {now or 'gone'}, "
                    f"and was {before}",
                    remedy="check out the locks (containers/locks) that began it, or begin a new run",
                )


def keep_given(folder: RunFolder, given: Mapping[tuple[str, str], Prepared]) -> None:
    """Note, beside run.json, which images were given, so that ``resume`` uses the same ones."""
    if given:
        write_whole(folder.path / _GIVEN, json.dumps([recorded(prepared) for prepared in given.values()]) + "\n")


def kept_given(folder: RunFolder) -> dict[tuple[str, str], Prepared]:
    """Return the images that a run was given; an InputError names one that is gone."""
    file = folder.path / _GIVEN
    bodies = read_json(file) if file.exists() else []
    found = [prepared_from(body) for body in bodies] if isinstance(bodies, list) else []
    for prepared in found:
        if prepared and not Path(prepared.reference).exists():
            raise InputError(
                f"image {prepared.reference}, which this run was begun with, is gone",
                remedy="`envmatrix reproduce ARCHIVE --check` unpacks it again",
            )
    return {(prepared.image, prepared.engine): prepared for prepared in found if prepared}


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


def places_of(matrix_path: Path, bench: Path) -> Places:
    """Return where engines find locks and bench/, and where they build. Locks beside the matrix come first."""
    beside = matrix_path.resolve().parent / "containers" / "locks"
    locks = beside if beside.is_dir() else project.locks_folder()
    return Places(Cache(project.cache_folder()), locks, bench)
