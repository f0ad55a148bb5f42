"""Check that costs of known size, added by a real program, are attributed to the right part."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import envmatrix
from envmatrix.stats.attribution.step_time_parts import StepParts, step_parts
from envmatrix.stats.measurements import Measurements

PROGRAM = Path(__file__).with_name("costly_program.py")
#: Kind of cost -> the part that it belongs to, and two sizes: seconds per step, processes of others, CPUs of a quota.
KINDS = {
    "faults": ("kernel", (4e-3, 12e-3)),
    "user": ("user", (4e-3, 12e-3)),
    "kernel": ("kernel", (4e-3, 12e-3)),
    "sleep": ("blocked", (4e-3, 12e-3)),
    "lock": ("blocked", (4e-3, 12e-3)),
    "others": ("waiting", (2, 4)),
    "quota": ("waiting", (0.8, 0.4)),
}
WAITS = ("sleep", "spin")
CLOSE = 0.10
#: A built-in workload with oneDNN's kernels for older instruction sets: the whole difference is user time.
OLDER_KERNELS = """
version: 2
factors:
  python: {{mine: {{interpreter: {python}}}}}
  isa: {{newest: {{}}, isa-0: {{env: {{ONEDNN_MAX_CPU_ISA: AVX}}}}, isa-1: {{env: {{ONEDNN_MAX_CPU_ISA: SSE41}}}}}}
environments: {{baseline: {{}}, isa-0: {{isa: isa-0}}, isa-1: {{isa: isa-1}}}}
workloads: {{cnn: {{model: fashion-cnn, steps: 30, warmup_steps: 3, eval_samples: 64}}}}
designs:
  default: {{environments: [isa-0, isa-1], workloads: cnn, schedule: turns, budget: 1h, min_blocks: {blocks},
    max_blocks: {blocks}}}
"""


def matrix(kinds: list[str], waits: str, blocks: int) -> str:
    """Return a matrix.yaml with an environment for each cost, and none in the baseline."""
    levels = [f"    none: {{env: {{ENVMATRIX_COST: 'none:0:{waits}'}}}}"]
    names = []
    for kind in kinds:
        for number, size in enumerate(KINDS[kind][1]):
            names.append(f"{kind}-{number}")
            quota = f"cpu_quota: '{size}', " if kind == "quota" else ""
            levels.append(f"    {names[-1]}: {{{quota}env: {{ENVMATRIX_COST: '{kind}:{size}:{waits}'}}}}")
    return "\n".join([
        "version: 2", "factors:", f"  python:\n    mine: {{interpreter: {sys.executable}}}", "  cost:", *levels,
        "environments:", "  baseline: {}", *(f"  {name}: {{cost: {name}}}" for name in names),
        "workloads:", "  costly:", f"    command: [python, {PROGRAM}]",
        "    metrics: {wall: {wall: true}, paid: {regex: 'paid: ([0-9.]+)'}}",
        "designs:", f"  default: {{environments: [{', '.join(names)}], workloads: costly, budget: 1h, "
        f"schedule: sequential, min_blocks: {blocks}, max_blocks: {blocks}}}",
    ]) + "\n"  # fmt: skip


def lines_of(result: envmatrix.Result, waits: str) -> list[str]:
    """Return a line for each environment: its added cost, and the share attributed to the right part."""
    summary = result.summary
    found = step_parts(summary.analysis, summary.measured)  # on a busy machine there may be no verdict
    lines = []
    for effect in summary.analysis.primary_effects():
        kind = effect.environment.partition("-")[0]
        if kind in KINDS:
            lines.append(_line(effect.environment, waits, KINDS[kind][0], found.get(effect.arm), summary.measured))
    return lines


def _line(name: str, waits: str, part: str, why: StepParts | None, measured: Measurements) -> str:
    head = f"{name:12} {waits:6}"
    one = why.part(part) if why else None
    if why is None or one is None:
        return f"{head} not accounted for"
    row = measured.arms.index(why.arm.name)
    paid = float(np.nanmean(measured.table["own.paid"][row]))
    share = one.change.mean / paid
    right = "within 10 points" if abs(share - 1) <= CLOSE else "OFF"
    holds = "holds" if (one.change.low or 0.0) <= paid <= (one.change.high or 0.0) else "MISSES"
    return f"{head} paid {1e3 * paid:6.1f} ms, {part} {share:4.0%} of it: {right}, interval {holds}"


def table(blocks: int, python: str) -> list[str]:
    """Run all costs next to a thread that sleeps, then next to one that spins; then oneDNN's older kernels."""
    lines = []
    for waits in WAITS:
        with _measured(matrix(list(KINDS), waits, blocks)) as result:
            lines += lines_of(result, waits)
    with _measured(OLDER_KERNELS.format(python=python, blocks=blocks)) as result:
        found = step_parts(result.summary.analysis, result.summary.measured)
        lines += [_line_of_all(name, "user", found) for name in ("isa-0", "isa-1")]
    return lines


@contextmanager
def _measured(text: str) -> Iterator[envmatrix.Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "matrix.yaml")
        file.write_text(text)
        yield envmatrix.run(matrix=file, results=Path(folder, "results"), progress=print)


def _line_of_all(name: str, part: str, found: Mapping[str, StepParts]) -> str:
    """Return the line of an environment whose whole difference belongs to one part."""
    why = next((one for one in found.values() if one.arm.environment == name), None)
    one = why.part(part) if why else None
    if why is None or one is None or one.share is None:
        return f"{name:12} not accounted for"
    right = "within 10 points" if abs(one.share.mean - 1) <= CLOSE else "OFF"
    holds = "holds" if (one.share.low or 0.0) <= 1 <= (one.share.high or 0.0) else "MISSES"
    whole = f"{1e3 * why.whole.mean:+.1f} ms a step"
    return f"{name:12} {whole}, {part} {one.share.mean:4.0%} of it: {right}, interval {holds}"
