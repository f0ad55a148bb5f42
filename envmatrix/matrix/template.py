"""Generate the matrix for one program: for `envmatrix init`, and for a program given on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.matrix.metrics import WALL_TIME, MetricSource
from envmatrix.matrix.model import Workload
from envmatrix.units import as_budget, as_duration

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
_OWN_THREADS = """
  threads:                                    # the first level of a factor is its reference
    default: {}
    one: {env: {OMP_NUM_THREADS: "1", OPENBLAS_NUM_THREADS: "1", MKL_NUM_THREADS: "1"}}
  placement:
    anywhere: {}
    pinned: {cpus: "{physical_cpu_list}"}
"""
_OWN_ENVIRONMENTS = """
  one-thread: {threads: one}
  pinned: {placement: pinned}
"""


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
        descriptions = FOR_TORCH if self.torch else FOR_ANY
        include = "recipes" if self.torch else "malloc"
        holds = "allocators, OpenMP runtimes, threads, recommended settings" if self.torch else "allocators"
        others = [name for name in descriptions if name not in self.environments]
        own_threads, own_environments = ("", "") if self.torch else (_OWN_THREADS, _OWN_ENVIRONMENTS)
        return "\n".join([
            "# How much faster is your program in each environment? `envmatrix check` finds mistakes in this file,",
            "# `envmatrix bench` runs it. docs/matrix.md of envmatrix explains every key.",
            "version: 2",
            f"include: envmatrix:{include:27}# {holds}: `envmatrix list environments`",
            "",
            "factors:",
            *self._python(),
            *own_threads.strip("\n").splitlines(),
            "",
            "environments:",
            "  baseline: {}                              # every factor at its reference; compared with all others",
            *own_environments.strip("\n").splitlines(),
            "  # both: {malloc: tcmalloc, threads: one}    # an environment of your own",
            "",
            "workloads:",
            *(line for workload in self.workloads for line in self._workload(workload)),
            "",
            "designs:",
            "  default:",
            *([f"    description: {_json_quoted(self.description)}"] if self.description else []),
            "    environments:",
            *(f"      - {name:30}# {descriptions[name]}" for name in self.environments),
            *(f"      # - {name:28}# {descriptions[name]}" for name in others),
            f"    workloads: {_json_quoted([workload.name for workload in self.workloads])}",
            *([f"    engines: {self.engine}"] if self.image else []),
            *([f"    gpus: {_json_quoted(list(self.gpus))}"] if self.gpus else []),
            "    target: 3%                                # stop when every interval is this narrow,",
            f"    budget: {as_budget(self.budget_s):34}# or after this time",
            *(["    claims_first: true                        # but not before a verdict is possible"]
              if self.claims_first else []),
            *(["    schedule: sequential                      # not interleaved: all would use GPU memory at once"]
              if self.on_gpu else []),
            f"    trial_limit: {as_duration(self.trial_limit_s):29}# stop a trial that runs longer",
            "",
        ])  # fmt: skip

    def _python(self) -> list[str]:
        if self.image:
            image = _json_quoted(self.image)
            return ["  image:", f"    mine: {{image: {image}}}  # the image that it runs in, unchanged"]
        values = {"modules": list(self.modules), "interpreter": self.interpreter}
        python = {key: value for key, value in values.items() if value}
        if not self.requirements:
            return ["  python:", f"    mine: {_json_quoted(python)}  # the Python that runs it, unchanged"]
        files = _json_quoted([f"-r {file}" for file in self.requirements])
        return [
            "  python:",
            "    mine:",
            *(f"      {key}: {_json_quoted(value)}  # the Python that runs it" for key, value in python.items()),
            f"      requirements: {files}  # packages it lacks, in a venv on top of it",
        ]

    def _workload(self, workload: Workload) -> list[str]:
        document = workload.model_dump(exclude_defaults=True, exclude={"name", "command", "metric", "files"})
        better = {"better": "lower" if self.metric.wall else self.metric.better}
        metric = self.metric.model_dump(exclude_defaults=True) | better
        return [
            f"  {workload.name}:",
            f"    command: {_json_quoted(workload.command)}",
            *([f"    files: {_json_quoted(workload.files)}"] if workload.files else []),
            f"    metric: {_json_quoted(metric)}  # {self.why}",
            "    # metric: {regex: 'throughput: ([0-9.]+)', better: higher}   # the last match in its output, or",
            '    # metric: {json_file: "out.json:speed", better: higher}      # a number in a JSON file that it writes',
            '    # Which number shows that it did the same work everywhere? Without one: "equal work not checked"',
            "    # check: {regex: 'final loss: ([0-9.]+)', tolerance: 5%}",
            *(f"    {key}: {_json_quoted(value)}" for key, value in document.items()),
        ]


def _json_quoted(value: object) -> str:
    """Return a value as JSON, which is also valid YAML."""
    return json.dumps(value)
