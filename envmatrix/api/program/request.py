"""A program on the command line, with its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envmatrix.api.known_order import OrderAtlas
from envmatrix.api.program.place import IN_PLACE, ProgramPlace
from envmatrix.errors import InputError, Where
from envmatrix.matrix.environment_files import EnvironmentFile
from envmatrix.matrix.requirements import expand_requirements
from envmatrix.plan.environment import Image
from envmatrix.trials.program.command_line import check_command_line, is_python
from envmatrix.trials.program.trial_run import ProgramCommand, find_program, with_interpreter


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
