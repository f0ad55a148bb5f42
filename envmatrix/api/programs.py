"""A program on the command line: looked at once, then benchmarked in a matrix that is made for it."""

from __future__ import annotations

import datetime
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from envmatrix.api.program_metric import metric_of
from envmatrix.block import interrupts
from envmatrix.errors import EnvmatrixError, InputError, Where
from envmatrix.evidence import notices
from envmatrix.evidence.evidence import Evidence
from envmatrix.evidence.record import Record
from envmatrix.matrix import Matrix
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.program import of_python
from envmatrix.matrix.requirements import read
from envmatrix.matrix.template import FOR_ANY, FOR_TORCH, Starter
from envmatrix.plan.environment import Image
from envmatrix.report.formatting import count
from envmatrix.system import bench_options
from envmatrix.system.host import this_host
from envmatrix.system.machine_lock import alone_on_machine
from envmatrix.system.progress import Heartbeat, ProgressCallback
from envmatrix.system.validation_messages import in_words
from envmatrix.trials import orphans
from envmatrix.trials.hooks import clean_up, set_up
from envmatrix.trials.overrides import Overrides
from envmatrix.trials.program_files import program_files
from envmatrix.trials.program_variables import about_shell, looked_for
from envmatrix.trials.python_wrappers import unwrapped
from envmatrix.trials.trial_run import Look, Started, given, is_python, look, started
from envmatrix.units import as_budget, is_too_long, parse_duration

#: A program that takes longer than this (seconds) once is for a matrix of its own.
_LONGEST_LOOK_S = 4 * 3600.0
#: Unless --budget says otherwise: as many environments as have an answer within these seconds of blocks, and no fewer
#: than so many. What is left of three minutes is for `pip install`, the first look, the libraries and the table.
_SOON_S = 120.0
_FEWEST = 2
_MIN_BLOCKS = 6
#: How many environments are in a matrix for a program of which nobody knows how long it takes.
_FIRST = 4
_LONGEST_IMPORT_S = 120.0
_SPARE = 1.15
_GNU = "libgomp"
_AROUND = ("setup", "prepare", "cleanup")


@dataclass(frozen=True)
class Asked:
    """What the command line says of a program; ``parameters`` (name, values) stand in braces in its words.

    ``requirements`` are files of what its Python lacks, ``pass_env`` variables of this shell that it needs beside those
    that it seems to look for.
    """

    words: tuple[str, ...]
    setup: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    cleanup: tuple[str, ...] = ()
    warmup: int = 1
    metric_regex: str = ""
    metric_json: str = ""
    metric_steps: str = ""
    parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    requirements: tuple[Path, ...] = ()
    pass_env: tuple[str, ...] = ()

    def image(self, interpreter: str) -> Image:
        """Return what the program is looked at in: its Python, and over it what that lacks."""
        words = [f"-r {file.resolve()}" for file in self.requirements]
        known = read(words, Path.cwd(), Where(Path("--requirements")))
        return Image("first-look", interpreter=interpreter, requirements=known.words, index=known.index)


@dataclass(frozen=True)
class Made:
    """The matrix that was made for a program, its text with comments, what its run is called, and how long it took.

    ``more`` says what is left out to have the first answer soon, and the budget that has time for all; else ''.
    ``torch``: it runs PyTorch over GNU's OpenMP runtime. ``on_gpu`` is how many of its processes worked on a GPU.
    """

    matrix: Matrix
    text: str
    name: str
    took_s: float
    more: str
    torch: bool
    on_gpu: int


def make_matrix(
    asked: Asked, overrides: Overrides, file: Path, progress: ProgressCallback, show: Callable[[str], None]
) -> Made:
    """Run a program once and make a matrix for it, as if ``file`` held it. ``show`` takes its output.

    Its ``setup`` has been run by then, for every value of its parameters. Raises InputError for what cannot be,
    NothingRanError for a program that fails.
    """
    asked = replace(asked, words=unwrapped(asked.words, progress))
    program = started(asked.words)
    workloads = _workloads(asked, program)
    with cleaned_up_on_failure(workloads, progress):
        set_up(workloads, progress)
        seen = _looked(workloads[0], asked.image(program.interpreter), asked.warmup, progress, show)
        starter = _starter(program.interpreter, workloads, seen, asked, overrides, progress)
        text = _relative(starter, file).text()
        return Made(
            _wanted(parse(text, file), overrides),
            text,
            f"{_stem(asked.words)}-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}",
            seen.wall_s,
            _more(starter, seen, overrides),
            starter.torch,
            starter.on_gpu,
        )


def first_matrix(asked: Asked, interpreter: str | None, file: Path, progress: ProgressCallback) -> str:
    """Return the text of a matrix for a program that is not run, as if ``file`` held it: what ``make_matrix`` makes.

    ``interpreter`` is its Python (None: as ``make_matrix`` finds it). Raises InputError for what cannot be.
    """
    asked = replace(asked, words=unwrapped(asked.words, progress))
    program = given(asked.words, interpreter) if interpreter else started(asked.words)
    workloads = _workloads(asked, program)
    torch = _imports_torch(asked.image(program.interpreter), progress)
    starter = Starter(
        program.interpreter, workloads, torch, _possible(torch)[:_FIRST], requirements=asked.requirements
    )  # fmt: skip
    text = _relative(starter, file).text()
    parse(text, file)
    return text


def _imports_torch(image: Image, progress: ProgressCallback) -> bool:
    """Say whether a Python has a PyTorch as pip installs it; one that does not start here may be another machine's."""
    workload = _workload({"name": "torch", "command": ("python", "-c", "import torch"), "files": str(Path.cwd())})
    with tempfile.TemporaryDirectory(prefix="envmatrix-look-") as folder, suppress(EnvmatrixError):
        return _runs_torch(look(workload, image, _LONGEST_IMPORT_S, Path(folder) / "log", progress).record)
    return False


@contextmanager
def cleaned_up_on_failure(workloads: Iterable[Workload], progress: ProgressCallback) -> Iterator[None]:
    """Clean up where something goes wrong before the run, which cleans up itself."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            interrupts.heeded()  # what cleans up now is not to be interrupted by the same signal
        clean_up(workloads, progress)
        raise


def write_new(file: Path, text: str) -> None:
    """Write a file that must not be there. Raises InputError."""
    try:
        with file.open("x", encoding="utf-8") as body:
            body.write(text)
    except FileExistsError as error:
        raise InputError("it is already there", where=Where(file), remedy="name another file") from error
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=Where(file),
            remedy="name a file in a folder that is there and may be written",
        ) from error  # fmt: skip


def _workloads(asked: Asked, program: Started) -> tuple[Workload, ...]:
    """Return a workload for every combination of the parameters' values."""
    stem = _stem(asked.words)
    _check_parameters(asked)
    passed = tuple(sorted({*_passed(program), *asked.pass_env}))
    found = []
    for values in itertools.product(*(values for _, values in asked.parameters)):
        chosen = dict(zip((name for name, _ in asked.parameters), values, strict=True))
        name = _plain("-".join([stem, *(f"{key}-{value}" for key, value in chosen.items())]))
        around = {key: tuple(_filled(word, chosen) for word in getattr(asked, key)) for key in _AROUND}
        body = {
            "name": name, "command": tuple(_filled(word, chosen) for word in program.command), "home": "real",
            "pass_env": passed, **{key: argv for key, argv in around.items() if argv},
            **({"metric": {"json_file": asked.metric_json, "better": "higher"}} if asked.metric_json else {}),
        }  # fmt: skip
        found.append(_workload(body))
    if len({workload.name for workload in found}) < len(found):
        raise InputError("--parameter-list: two values give the same name", remedy="make them differ in letters")
    return tuple(found)


def _workload(body: Mapping[str, object]) -> Workload:
    try:
        return Workload.model_validate(body)
    except ValidationError as error:
        raise InputError(f"the program's command line: {in_words(error.errors()[0])}") from error


def _check_parameters(asked: Asked) -> None:
    text = " ".join([*asked.words, *asked.setup, *asked.prepare, *asked.cleanup])
    for name, _ in asked.parameters:
        if f"{{{name}}}" not in text:
            raise InputError(f"--parameter-list: {{{name}}} is nowhere in the program's words", remedy="write it there")


def _filled(text: str, chosen: Mapping[str, str]) -> str:
    for name, value in chosen.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _stem(words: Sequence[str]) -> str:
    """Return what a program is called: its script or module, else the program itself."""
    kind, name = of_python(words[1:]) if is_python(words[0]) else ("", "")
    if kind == "module":
        return _plain(name.removesuffix(".__main__").rpartition(".")[2])
    scripts = [word for word in words[1:] if word.endswith((".py", ".sh"))] if words[0] != "pytest" else []
    return _plain(Path((*scripts, words[0])[0]).stem)


def _plain(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:60] or "program"
    return f"{plain}-program" if plain in ("control", "baseline") else plain


def _passed(program: Started) -> tuple[str, ...]:
    """Return the variables of this shell that a program is given: what it looks for, and what bears on performance."""
    draft = _workload({"name": "draft", "command": program.command, "files": str(Path.cwd())})
    sources = [Path.cwd() / name for name in program_files(draft)]
    ours = ("LD_PRELOAD", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED")
    fast = [name for name in os.environ if bench_options.bears_on_performance(name)]
    found = {*looked_for(sources), *(name for name in fast if not name.startswith(("LC_", "BENCH_", "LANG", "TMPDIR")))}
    return tuple(sorted({"PATH", *found} - set(ours)))


def _looked(
    workload: Workload, image: Image, times: int, progress: ProgressCallback, show: Callable[[str], None]
) -> Look:
    """Run a program ``times`` times (at least once), alone as trials are, and return the last one."""
    times = max(1, times)
    with (
        alone_on_machine(progress),
        tempfile.TemporaryDirectory(prefix="envmatrix-look-", ignore_cleanup_errors=True) as logs,
    ):
        orphans.end_processes()
        for number in range(1, times + 1):
            which = f" ({number} of {times})" if times > 1 else ""
            progress(f"running it once, to see how long it takes and what it prints{which}")
            with ExitStack() as ending:

                def begins() -> None:
                    ending.callback(Heartbeat(progress, "the program runs").stop)

                seen = look(workload, image, _LONGEST_LOOK_S, Path(logs) / f"{number}.log", progress, begins)
            show(seen.output)
    return seen


def _starter(
    interpreter: str,
    workloads: Sequence[Workload],
    seen: Look,
    asked: Asked,
    overrides: Overrides,
    progress: ProgressCallback,
) -> Starter:
    torch = _runs_torch(seen.record)
    given_metric = workloads[0].metric
    told = (given_metric, "as --metric-json says, higher is better") if given_metric else None
    metric, why = told or metric_of(asked.metric_regex, asked.metric_steps, seen.output, seen.wall_s, seen.arrivals)
    known = _possible(torch)
    named = tuple(overrides.environments or ())
    trial_s = seen.wall_s * len(workloads)
    arms, budget_s = _affordable(trial_s, len(named) or len(known), overrides)
    chosen = named if named and set(named) <= set(known) else tuple(known[: arms - 2])
    for text in f"it took {seen.wall_s:.1f} s; metric: {why}".split("\n"):
        progress(text)
    evidence = seen.record.evidence or Evidence()
    for text in (*about_shell(workloads[0].pass_env), *notices.oddities(evidence)):
        progress(f"note: {text}")
    for line in itertools.chain(
        *(find(evidence) for find in (notices.without_gpu, notices.elsewhere, notices.unverifiable))
    ):
        progress(f"warning: {line}")
    progress(_about_set(chosen, torch=torch, record=seen.record))
    progress(_about_time(budget_s, trial_s, (len(named) or len(chosen)) + 2, overrides))
    limit_s = max(60.0, 10 * seen.wall_s)
    return Starter(
        interpreter, workloads, torch, chosen, metric, why.partition("\n")[0], budget_s, overrides.budget is None,
        limit_s, requirements=asked.requirements, on_gpu=_on_gpu(seen.record),
    )  # fmt: skip


def _about_time(budget_s: float, trial_s: float, arms: int, overrides: Overrides) -> str:
    """Say how much is run. When the first table comes, and whether a budget is enough, the first trials tell."""
    blocks = overrides.min_blocks or _MIN_BLOCKS
    if overrides.budget:
        fit = count(int(budget_s / trial_s), "trial")
        return f"budget {overrides.budget}: time for {fit} as long as that one; a verdict needs {blocks * arms}"
    most = overrides.max_blocks or 0
    if 0 < most < blocks:
        return f"the table comes after {most} x {arms} trials: about {as_budget(trial_s * arms * most)}"
    return f"{blocks} blocks of {arms} trials, or more: the first ones tell how long that takes"


def _affordable(trial_s: float, most: int, overrides: Overrides) -> tuple[int, float]:
    """Return how many arms (with baseline and control) and how many seconds: enough for claims about all of them."""
    each_s = _each_s(trial_s, overrides)
    given_s = parse_duration(overrides.budget) if overrides.budget else None
    fit = int((given_s / each_s if given_s else _SOON_S * _SPARE / each_s) + 1e-6)
    arms = most + 2 if overrides.environments else max(min(most, _FEWEST) + 2, min(most + 2, fit))
    return arms, given_s or min(_SOON_S, max(60.0, each_s * arms))


def _each_s(trial_s: float, overrides: Overrides) -> float:
    """Return the seconds that an arm takes until a claim can be made."""
    return trial_s * (overrides.min_blocks or _MIN_BLOCKS) * _SPARE


def _wanted(matrix: Matrix, overrides: Overrides) -> Matrix:
    """Return a matrix without the levels that nothing asks for: their libraries would be fetched first."""
    design = matrix.designs["default"]
    names = dict.fromkeys((design.baseline, *(overrides.environments or design.environments)))
    if not set(names) <= set(matrix.environments):
        return matrix  # whoever says that one is not there knows them all
    kept = {name: matrix.environments[name] for name in names}
    asked = {pair for entry in kept.values() for pair in entry.levels.items()}
    factors = {
        name: factor.model_copy(update={"levels": {
            level: body for level, body in factor.levels.items() if level == factor.reference or (name, level) in asked
        }})
        for name, factor in matrix.factors.items()
    }  # fmt: skip
    return matrix.model_copy(update={"environments": kept, "factors": factors})


def _more(starter: Starter, seen: Look, overrides: Overrides) -> str:
    known = _possible(starter.torch)
    left = [name for name in known if name not in starter.environments]
    if overrides.environments or not left:
        return ""
    all_s = _each_s(seen.wall_s * len(starter.workloads), overrides) * (len(known) + 2)
    enough = "" if is_too_long(all_s) else f" (--budget {as_budget(all_s)} has time for all)"
    return f"left out, to be done soon: {', '.join(left)}{enough}"


def _about_set(chosen: Sequence[str], *, torch: bool, record: Record) -> str:
    """Say what is benchmarked, and which recipes are no use here."""
    said = f"environments: {', '.join(chosen)}"
    evidence = record.evidence
    if torch:
        return said
    if evidence and evidence.torch:
        library = (evidence.openmp and evidence.openmp.library) or "no OpenMP runtime that could be seen"
        return f"{said}. Its PyTorch runs over {library}: the recipes, which are for {_GNU}, are left out"
    return f"{said}. It does not run PyTorch, as far as could be seen: the recipes for that are left out"


def _relative(starter: Starter, file: Path) -> Starter:
    """Return a starter whose programs lie in this folder, wherever its file is to be."""
    home = file.resolve().parent
    inside = tuple(Path(os.path.relpath(one.resolve(), home)) for one in starter.requirements)
    starter = replace(starter, requirements=inside)
    if home == Path.cwd().resolve():
        return starter
    folder = os.path.relpath(Path.cwd(), home)
    return replace(starter, workloads=[one.model_copy(update={"files": folder}) for one in starter.workloads])


def _runs_torch(record: Record) -> bool:
    evidence = record.evidence
    return bool(evidence and evidence.torch and evidence.openmp and evidence.openmp.library == _GNU)


def _on_gpu(record: Record) -> int:
    first = record.evidence
    known = [first, *(one.evidence for one in first.programs or ())] if first else []
    return sum(bool(one and one.cuda and one.cuda.used) for one in known)


def _possible(torch: bool) -> list[str]:
    """Return the environments that can be otherwise on this machine."""
    host = this_host()
    useless = {"one-thread"} if len(host.cpus) == 1 else set()
    useless |= {"pinned"} if host.physical_cpus == host.cpus else set()
    return [name for name in (FOR_TORCH if torch else FOR_ANY) if name not in useless]
