"""Place of a program on the command line: its engine, image, GPUs and launcher, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from envmatrix.api.runs import place_run
from envmatrix.engines.base import Engine, check_usable
from envmatrix.engines.catalog import AUTO, choose_engine, find_engine
from envmatrix.engines.catalog import DEFAULT as DEFAULT_ENGINE
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT
from envmatrix.matrix import Matrix
from envmatrix.results.run import LauncherOptions
from envmatrix.system.bench_options import hides_value
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.new_run import NewRun


@dataclass(frozen=True)
class ProgramPlace:
    """Where a program runs: in a ready ``image`` ('': its own Python) of ``engine``, with ``gpus``, by ``launcher``."""

    engine: str = DEFAULT_ENGINE
    image: str = ""
    gpus: tuple[str, ...] = ()
    launcher: str = DEFAULT
    launcher_options: LauncherOptions = field(default_factory=dict)

    @property
    def is_elsewhere(self) -> bool:
        """Whether trials run on other machines."""
        return self.launcher != DEFAULT


#: This machine, with the program's own Python.
IN_PLACE = ProgramPlace()


def make_place(
    engines: Iterable[str], image: str, launcher: str, options: LauncherOptions, progress: ProgressCallback
) -> ProgramPlace:
    """Return the place that these options name. Raises InputError or EngineError for one that is not possible.

    ``gpus`` among the options are a container's, and with a launcher those of a node too.
    """
    names = list(engines) or [DEFAULT_ENGINE]
    if len(names) > 1:
        raise InputError(
            f"--engine {','.join(names)}: your own program runs on one engine",
            remedy="pass one; to compare engines, edit the matrix that `bench --save` writes",
        )
    engine = check_image(names[0], image, progress)
    gpus: tuple[str, ...] = ()
    if image and options.get("gpus"):
        asked = str(options["gpus"])
        gpus = ("all",) if launcher != DEFAULT else tuple(word.strip() for word in asked.split(","))
        options = options if launcher != DEFAULT else {name: v for name, v in options.items() if name != "gpus"}
    return ProgramPlace(engine.name, image, gpus, launcher, options)


def check_image(name: str | None, image: str, progress: ProgressCallback) -> Engine:
    """Return the engine of that name (None: the default). Raises an error unless it can be used with ``image``.

    Containers need one ('': none), other engines cannot use one.
    """
    engine = find_engine(choose_engine(progress) if name == AUTO else name or DEFAULT_ENGINE)
    if image and engine.shares_files:
        raise InputError(
            f"--image {image}: engine {engine.name} uses no image",
            remedy="add `--engine docker`, `--engine podman` or `--engine apptainer`",
        )
    if not image and not engine.shares_files:
        raise InputError(
            f"--engine {engine.name} needs an image with your program's Python and packages",
            remedy="`--image REF`: a tag, a reference with a digest, or a .tar or .sif file",
        )
    check_usable(engine)
    return engine


def check_place(matrix: Matrix, place: ProgramPlace, pass_env: Iterable[str]) -> None:
    """Check that the launcher can run a program's design, before its trial run. ``pass_env``: --pass-env.

    Raises an error for anything that the launcher cannot do.
    """
    secret = next((name for name in pass_env if hides_value(name)), None)
    if secret and place.is_elsewhere:
        raise InputError(
            f"--pass-env {secret}: it looks like a secret, and a job's files would show its value",
            remedy="let your program read it from a file that only you can read",
        )
    new_run, design = (
        NewRun(launcher=place.launcher, launcher_options=place.launcher_options),
        matrix.designs["default"],
    )
    place_run(matrix, design, design.engines, new_run)


def passable(names: Iterable[str], place: ProgramPlace) -> list[str]:
    """Return the variables of this shell that a program may get in its place, unless you name them.

    A container has its own programs and libraries, and a job's files would show secrets.
    """
    host_only = {"PATH", "LD_LIBRARY_PATH"} if place.image else set()
    return [name for name in names if name not in host_only and not (place.is_elsewhere and hides_value(name))]
