"""A program on the command line, with its options and its place: engine, image, GPUs and launcher."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from envmatrix.api.atlas import OrderAtlas
from envmatrix.api.runs import place_run
from envmatrix.engines.base import Engine, check_usable
from envmatrix.engines.catalog import AUTO, choose_engine, find_engine
from envmatrix.engines.catalog import DEFAULT as DEFAULT_ENGINE
from envmatrix.errors import InputError, Where
from envmatrix.launchers.catalog import DEFAULT
from envmatrix.matrix import Matrix
from envmatrix.matrix.environment_files import EnvironmentFile
from envmatrix.matrix.pip_requirements_files import expand_requirements
from envmatrix.plan.environment import Image
from envmatrix.results.run_model import LauncherOptions
from envmatrix.system.bench_options import hides_value
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.user_program.command_line_check import check_command_line, is_python
from envmatrix.trials.user_program.preliminary_run import ProgramCommand, find_program, with_interpreter


@dataclass(frozen=True)
class ProgramPlace:
    """Where a program runs: in a ready ``image`` ('': its own Python) of ``engine``, with ``gpus``, by ``launcher``."""

    engine: str = DEFAULT_ENGINE
    image: str = ""
    gpus: tuple[str, ...] = ()
    launcher: str = DEFAULT
    launcher_options: LauncherOptions = field(default_factory=dict)

    @property
    def is_on_other_machines(self) -> bool:
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
    if secret and place.is_on_other_machines:
        raise InputError(
            f"--pass-env {secret}: it looks like a secret, and a job's files would show its value",
            remedy="let your program read it from a file that only you can read",
        )
    new_run, design = (
        NewRun(launcher=place.launcher, launcher_options=place.launcher_options),
        matrix.designs["default"],
    )
    place_run(matrix, design, design.engines, new_run)


def without_secrets_and_host_paths(names: Iterable[str], place: ProgramPlace) -> list[str]:
    """Return the variables of this shell that a program may get in its place, unless you name them.

    A container has its own programs and libraries, and a job's files would show secrets.
    """
    host_only = {"PATH", "LD_LIBRARY_PATH"} if place.image else set()
    return [name for name in names if name not in host_only and not (place.is_on_other_machines and hides_value(name))]


@dataclass(frozen=True)
class ProgramRequest:
    """A program's options on the command line; ``parameters`` (name, values) replace {name} in its words.

    ``requirements``: files of packages that its Python lacks. ``pass_env``: variables of this shell that it needs, in
    addition to those that it seems to read. ``like``: variables, modules and the Python of all environments. ``place``:
    where it runs. ``atlas``: gives the order of the environments.
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
    like: EnvironmentFile | None = None
    place: ProgramPlace = IN_PLACE
    atlas: OrderAtlas | None = None

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that provide its Python."""
        return tuple(self.like.modules) if self.like else ()

    def program(self) -> ProgramCommand:
        """Return the program with its Python: its image's, that of ``like``, or the one that a shell would start.

        Raises InputError for one that cannot be started, or that would do its work elsewhere.
        """
        check_command_line(self.words)
        if self.place.image:
            return self._program_in_image()
        if (
            self.like
            and is_python(self.words[0])
            and "/" not in self.words[0]
            and (self.like.interpreter or self.modules)
        ):
            return with_interpreter(self.words, self.like.interpreter)
        return find_program(self.words)

    def _program_in_image(self) -> ProgramCommand:
        python = self.words[0]
        own = {
            "--requirements": self.requirements,
            "the modules of --like": self.modules,
            f"{python}, a Python of this machine,": is_python(python) and "/" in python and not python.startswith("/"),
        }
        conflict = next((name for name, value in own.items() if value), None)
        if conflict:
            raise InputError(
                f"{conflict} cannot be combined with --image: the image has its own Python",
                remedy="use an image with your packages, and write `python` for its Python",
            )
        return with_interpreter(self.words, "") if "/" not in python else ProgramCommand("", self.words)

    def image(self, interpreter: str) -> Image:
        """Return the image of the trial run: the ready one, or the program's Python with the requirements added."""
        if self.place.image:
            return Image("first-look", ready=self.place.image)
        words = [f"-r {file.resolve()}" for file in self.requirements]
        parsed = expand_requirements(words, Path.cwd(), Where(Path("--requirements")))
        return Image(
            "first-look", interpreter=interpreter or None, requirements=parsed.words, index=parsed.index,
            modules=self.modules,
        )  # fmt: skip
