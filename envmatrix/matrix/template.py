"""Generate the matrix for one program: for `envmatrix init`, and for a program given on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.durations_and_sizes import as_duration
from envmatrix.matrix.metric_sources import WALL_TIME, MetricSource
from envmatrix.matrix.model import Workload

if TYPE_CHECKING:
    from jinja2 import Template

#: Environments for PyTorch as pip installs it, the most promising first.
FOR_TORCH = {
    "pytorch-ci": "the settings of PyTorch's own CPU benchmarks",
    "tcmalloc": "Google's allocator",
    "glibc-tuned": "keep big tensors in the heap",
    "mimalloc": "Microsoft's allocator",
    "intel-omp": "Intel's OpenMP runtime",
    "jemalloc": "the allocator of the BSDs",
    "run-cpu": "what torch.backends.xeon.run_cpu sets",
    "book": "from a book on training on CPUs",
    "bind-close": "bind threads to neighbouring cores",
    "one-thread": "one thread",
}
#: Environments for other programs, the most promising first.
FOR_ANY = {
    "tcmalloc": "Google's allocator",
    "one-thread": "one thread for OpenMP and the BLAS libraries",
    "glibc-tuned": "keep big blocks in the heap",
    "mimalloc": "Microsoft's allocator",
    "jemalloc": "the allocator of the BSDs",
    "pinned": "only on the first CPU of each core",
}
#: Of a workload: what the template writes itself.
_WRITTEN = {"name", "command", "metric", "files"}


@dataclass(frozen=True)
class MatrixTemplate:
    """Parameters of the generated matrix of one program.

    ``torch``: whether it runs PyTorch with GNU's OpenMP runtime, as pip installs it. ``metric`` is what is measured,
    and ``why`` how that was chosen. ``environments`` are names of FOR_TORCH or FOR_ANY. ``claims_first``: run enough
    blocks for a verdict even beyond the budget. ``on_gpu`` is how many of its processes use a GPU. ``image``: the ready
    image that it runs in ('': none), with ``engine`` and ``gpus``. ``description`` is the
    design's.
    """

    interpreter: str
    workloads: Sequence[Workload]
    torch: bool
    environments: Sequence[str]
    metric: MetricSource = WALL_TIME
    why: str = "its performance"
    budget_s: float = 1800.0
    claims_first: bool = False
    trial_limit_s: float = 300.0
    description: str = ""
    requirements: Sequence[Path] = ()
    modules: Sequence[str] = ()
    on_gpu: int = 0
    image: str = ""
    engine: str = ""
    gpus: Sequence[str] = ()

    def text(self) -> str:
        """Return the text of the matrix, with comments that help to edit it."""
        python = {"modules": self.modules, "interpreter": self.interpreter}
        better = {"better": "lower" if self.metric.wall else self.metric.better}
        settings = {
            workload.name: workload.model_dump(exclude_defaults=True, exclude=_WRITTEN) for workload in self.workloads
        }
        return _template().render(
            vars(self),
            descriptions=FOR_TORCH if self.torch else FOR_ANY,
            python={key: value for key, value in python.items() if value},
            requirements=[f"-r {file}" for file in self.requirements],
            settings=settings,
            metric=self.metric.model_dump(exclude_defaults=True) | better,
            budget=as_duration(self.budget_s),
            trial_limit=as_duration(self.trial_limit_s),
        )


@cache
def _template() -> Template:
    """Return the template, whose values are written as JSON, which is also valid YAML."""
    from jinja2 import Environment, StrictUndefined

    templates = Environment(  # noqa: S701 - not HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="[[",  # YAML has braces
        variable_end_string="]]",
    )
    templates.filters["json"] = json.dumps
    return templates.from_string(Path(__file__).with_name("program.yaml.j2").read_text(encoding="utf-8"))
