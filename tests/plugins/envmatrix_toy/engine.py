"""An engine that starts plain processes with one Python and uses small files as images."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.images.context import BaseImage
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import CommandLine, Engine, Job, Mounts, NamedImage, Prepared, log_of
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.system.process import Exit, Order, run_logged
from envmatrix.system.progress import ProgressCallback


@dataclass(frozen=True)
class ToyEngine(Engine):
    places: BuildPaths
    name: str = "toy"
    shares_files = True
    has_portable_images = True

    def unavailable(self) -> str | None:
        return os.environ.get("TOY_IS_AWAY")

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        file = self.places.cache.root / "toy" / f"{image.name}.toy"
        if not file.exists():
            progress(f"making {file}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"the image {image.name}\n")
        python = os.environ.get("TOY_PYTHON", sys.executable)
        return Prepared(image.name, self.name, str(file), python, {}, {"toy": "1.0"})

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        return {"work": str(mounts.work), **{name: str(path) for name, path in mounts.read.items()}}

    def run(self, job: Job) -> Exit:
        with log_of(job) as log:
            return run_logged(Order(job.argv, job.env, job.mounts.work, job.limits.seconds), log)

    def sweep(self, run: str) -> int:
        return 0

    # Below: optional methods of engines.

    def command_line(self, job: Job) -> CommandLine:
        return CommandLine(job.argv, job.env, job.mounts.work)

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        return [f"exec {placement}toy-start {prepared.reference} {' '.join(variables)}"]

    def base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        return BaseImage("bookworm", "toy:1", "sha256:00", "", "toy base")

    def build_named(
        self, environment: Environment, libraries: tuple[Library, ...], folder: Path, progress: ProgressCallback
    ) -> NamedImage:
        file = folder / f"{environment.name}.toy"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the image of {environment.name}\n")
        return NamedImage(str(file), f"toy-start {file}")

    def bill_file(self, prepared: Prepared) -> Path:
        return Path(prepared.reference)

    def image_file(self, prepared: Prepared) -> Path:
        return Path(prepared.reference)
