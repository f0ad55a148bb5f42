"""Warnings about the machine while it measured: drift, stolen time, other load, changing frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from envmatrix.matrix.readers import reader_of
from envmatrix.plan import shown_name
from envmatrix.report.formatting import count
from envmatrix.report.warning import Caution, Kind
from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.arm_facts import ArmFacts
from envmatrix.stats.contention import DISTURBED, quota_around
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import logs_of
from envmatrix.system.printable import one_line

Floats = NDArray[np.float64]
#: From the first to the last block; pairs cancel drift, but a machine that drifts this much is not at rest.
DRIFT = 0.05
STOLEN = 0.01
#: Told of single blocks too, where most are quiet.
MUCH_DISTURBED = 0.25
BUSY = 0.05
FREQUENCY = 0.10
_TICKS_PER_S = 100.0


def _level_of_blocks(measured: Measurements, names: list[str], metric: str) -> Floats:
    """Return each block's mean log speed, arms' own levels taken out; NaN where a block has no trial."""
    logs = logs_of(measured.table[metric][[measured.arms.index(name) for name in names]])
    there = np.isfinite(logs)
    own = np.where(there, logs, 0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    rest = np.where(there, logs - own[:, None], 0.0)
    counted = there.sum(axis=0)
    return np.where(counted > 0, rest.sum(axis=0) / np.maximum(counted, 1), np.nan)


def trend(values: Floats) -> tuple[float, float]:
    """Return the least-squares slope of four or more values, a step each, and its standard error.

    (``scipy.stats``, which has the same, takes longer to load than a report takes to write.)
    """
    line, covariance = np.polyfit(np.arange(values.size), values, 1, cov=True)
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def drift(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[Caution]:
    """Find a trend over the blocks that is both large and beyond the noise."""
    for workload, metric in analysis.primary.items():
        names = [arm.name for arm in run.plan.arms if arm.workload == workload]
        level = _level_of_blocks(measured, names, metric.name)
        level = level[np.isfinite(level)]
        if level.size < 5:
            continue
        slope, error = trend(level)
        whole = slope * (level.size - 1)
        if abs(whole) > DRIFT and abs(slope) > 3 * error:
            yield Caution(
                Kind.DRIFT, workload, f"all trials moved by {whole:+.0%} from the first block to the last",
                "find its cause, though pairs cancel it: heat, a neighbour on the host, a growing cache",
            )  # fmt: skip


def stolen(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find time that the hypervisor gave to others.

    The kernel's ticks (a hundredth of a second) are summed over all CPUs, and counted over the timed part, or over the
    whole of a program of the user's own.
    """
    timed, whole = measured.table["training_s"], measured.table["trial_s"]
    there = np.where(np.isfinite(timed), timed, whole) * max(1, len(run.host.cpus))
    shares = measured.table["steal_ticks"] / _TICKS_PER_S / there
    shares = shares[np.isfinite(shares)]
    if shares.size and float(np.mean(shares)) > STOLEN:
        yield Caution(
            Kind.STEAL, "the virtual machine", f"its CPUs were taken away for {np.mean(shares):.1%} of the time",
            "use a machine with CPUs of its own, or more blocks: intervals are wider for it, not wrong",
        )  # fmt: skip


def disturbed(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[Caution]:
    """Find trials whose threads were ready to run while others had their CPUs: other programs, or one another."""
    shares = measured.disturbed()
    there = np.isfinite(shares)
    waits = analysis.for_cpus
    waited = [arm.name for arm in run.plan.arms if arm.name in waits and waits[arm.name].share > DISTURBED]
    own = bool(waited) and all(waits[name].own for name in waited)
    if there.any() and (own or any(waits[name].is_busy for name in waited)):
        of_those = shares[[arm in waited for arm in measured.arms]] if own else shares
        worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
        yield Caution(
            Kind.DISTURBED, ", ".join(waited) if own else "the machine",
            f"disturbed {np.nanmedian(of_those):.0%}: so much of the time in which their threads could have run they "
            f"waited for a CPU (most, {shares[worst]:.0%}: {shown_name(measured.arms[worst[0]])} in block "
            f"{measured.blocks[worst[1]]})",
            "use no more threads or ranks than CPUs: other programs took none, so these wait for one another"
            if own
            else "run `envmatrix doctor`: it names what runs beside; more threads than CPUs wait for one another too",
        )  # fmt: skip


def quota(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find a CPU quota around the tool itself, such as that of a pod."""
    found = quota_around(run, measured)
    if found:
        yield Caution(
            Kind.QUOTA, "the machine",
            f"its trials had the time of {found[0]:g} of {len(run.host.cpus)} CPUs, a quota of their control group, "
            f"which was used up in {found[1]:.0%} of its periods",
            "measure without it, or with no more threads than that: `envmatrix docs cpu-limit`",
        )  # fmt: skip


def at_times(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find blocks in which others had the CPUs, of a machine that most of the time was left alone."""
    shares = measured.disturbed()
    there = np.isfinite(shares)
    if not there.any() or float(np.median(shares[there])) > DISTURBED:
        return
    blocks = {
        int(block): float(np.median(of_block[known]))
        for block, of_block, known in zip(measured.blocks, shares.T, there.T, strict=True)
        if known.any()
    }
    much = [block for block, share in blocks.items() if share > MUCH_DISTURBED]
    if much:
        worst = max(much, key=lambda block: blocks[block])
        yield Caution(
            Kind.DISTURBED, "the machine",
            f"{len(much)} of {count(len(blocks), 'block')} were disturbed by other programs (most, block {worst}: "
            f"threads waited for a CPU in {blocks[worst]:.0%} of the time in which they could have run)",
            "run `envmatrix doctor`: it names what runs beside; pairs cancel much of it, intervals are wider for it",
        )  # fmt: skip


def other_load(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find a load that the trials, which run one at a time, cannot have made (in turns they start at once)."""
    if run.design.schedule == "turns":
        return
    load = measured.table["load_1m"]
    load = load[np.isfinite(load)]
    count = len(run.host.cpus)
    if count and load.size and float(np.median(load)) > 1.5 * count + 1:
        yield Caution(
            Kind.OTHER_LOAD, "the machine", f"its load was {np.median(load):.1f} on {count} CPUs",
            "end the other programs, or measure when they do not run",
        )  # fmt: skip


def strangers(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find, node by node, blocks before which others used it, while their job did nothing yet."""
    for node in dict.fromkeys(node for node, _ in measured.node_checks):
        checks = {block: check for (where, block), check in measured.node_checks.items() if where == node}
        seen = {block: check for block, check in checks.items() if (check.busy or 0) > BUSY}
        if not seen:
            continue
        block, check = max(seen.items(), key=lambda item: item[1].busy or 0)
        names = f" ({', '.join(check.others)} ran there)" if check.others else ""
        yield Caution(
            Kind.OTHER_LOAD, node,
            f"before {len(seen)} of the {count(len(checks), 'block')} that ran on it others used its CPUs; "
            f"the most, {check.busy:.0%} of all, before block {block}{one_line(names, 200)}",
            "run it with `--busy 10%`, which hands such a block back; ask who else may use nodes that jobs have to "
            "themselves",
        )  # fmt: skip


def frequency(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find a CPU frequency that changed between trials, where it can be read."""
    speeds = measured.table["mhz"]
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    if speeds.size > 1 and float(np.ptp(speeds)) > FREQUENCY * float(speeds.max()):
        yield Caution(
            Kind.FREQUENCY, "the CPU", f"its frequency went from {speeds.min():.0f} to {speeds.max():.0f} MHz",
            "set the governor to performance and switch turbo off while measuring; `envmatrix doctor` says how",
        )  # fmt: skip


def unverified(run: Run, _measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find environments that differ from their reference but claim nothing that evidence could contradict."""
    runs = {arm.name: arm.runs for arm in run.plan.arms}
    for arm in run.plan.arms:
        own, other = (run.environments.get(name) for name in (arm.runs, runs.get(arm.reference or "", "")))
        if own and other and own.levels != other.levels and not own.claims and not own.variables:
            yield Caution(
                Kind.UNVERIFIED, arm.environment, "its levels claim nothing that could be read back",
                "add `claims:` to its level, so that a trial in which it does not work is INVALID",
            )  # fmt: skip


def _causes(
    measured: Measurements, kind: Kind, texts: Callable[[ArmFacts], Counter[str]], remedy: str
) -> Iterator[Caution]:
    """Tell each cause once, of all environments, with a count of trials."""
    for cause in dict.fromkeys(text for fact in measured.facts.values() for text in texts(fact)):
        found = {name: fact for name, fact in measured.facts.items() if texts(fact)[cause]}
        number = sum(texts(fact)[cause] for fact in found.values())
        total = sum(fact.outcomes["ok"] for fact in found.values())
        yield Caution(kind, ", ".join(found), f"{one_line(cause, 400)} ({number} of {count(total, 'trial')})", remedy)


def unproven(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find what environments promise and nobody saw, though nothing contradicts it."""
    remedy = (
        "read in docs/workloads.md what can be seen of a program: its figures stand, but it is neither recommended "
        "nor in the best set"
    )
    yield from _causes(measured, Kind.UNPROVEN, lambda fact: fact.unproven, remedy)


def elsewhere(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find programs that may have handed their work to somebody whom neither clock nor environment reaches."""
    remedy = "run what does its work inside each trial, and let the program wait for it"
    yield from _causes(measured, Kind.ELSEWHERE, lambda fact: fact.elsewhere, remedy)


def without_gpu(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find programs that would have worked on a GPU."""
    remedy = "run `envmatrix doctor`, which looks for a GPU and its driver, unless you mean to measure the CPU"
    yield from _causes(measured, Kind.NO_GPU, lambda fact: fact.without_gpu, remedy)


def odd_processes(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Find threads that were placed or doubled, and preloads that were lost, unknown to whoever reads the table."""
    found: dict[str, list[str]] = {}
    for name, fact in measured.facts.items():
        for text in fact.oddities:
            found.setdefault(text, []).append(name)
    for text, names in found.items():
        yield Caution(
            Kind.ODDITY, ", ".join(names), one_line(text, 400),
            "read in docs/verdicts.md what to change, and why: its figures are those of a process like that",
        )  # fmt: skip


def shell(run: Run, _measured: Measurements, _analysis: Analysis) -> Iterator[Caution]:
    """Name what of the shell that began the run every environment had, or had not, that bears on speed."""
    names = sorted({name for one in run.workloads.values() for name in one.pass_env if reader_of(name)})
    if names:
        yield Caution(
            Kind.SHELL, "the shell", f"every environment had its {', '.join(names)}, unless a level sets it",
            "begin again in a shell without them to measure PyTorch as it comes",
        )  # fmt: skip
    if run.shell_preload:
        yield Caution(
            Kind.SHELL, "the shell", f"no environment had its LD_PRELOAD ({one_line(run.shell_preload, 200)})",
            "write `preload:` in a level for what your program needs",
        )  # fmt: skip


#: A further check of the machine is one more entry here.
CHECKS: tuple[Callable[[Run, Measurements, Analysis], Iterator[Caution]], ...] = (
    drift, stolen, quota, disturbed, at_times, other_load, strangers, frequency, unverified, unproven, elsewhere,
    without_gpu, odd_processes, shell,
)  # fmt: skip
