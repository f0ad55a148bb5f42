"""The plan: which arms are compared, and in which random order, block by block. Pure and seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from envmatrix.matrix import Design

#: Name of the second copy of the baseline (A/A): its interval shows the noise of the run.
CONTROL = "control"
#: Suffix of the uninterrupted copy of a reference; no environment of a matrix can have such a name.
_COPY_SUFFIX = " alone"
#: The two sides of a run that compares two matrices; environments of the first are the references.
SIDES = ("old", "new")


@dataclass(frozen=True)
class Arm:
    """An environment with one workload on one engine, compared with the arm named by ``reference``.

    ``environment`` is the displayed name ('control' for the second copy of the baseline), ``runs`` the environment that
    actually runs. The reference arm of a comparison has ``reference`` None.
    """

    name: str
    environment: str
    runs: str
    workload: str
    engine: str
    reference: str | None

    @classmethod
    def of(cls, environment: str, runs: str, workload: str, engine: str, reference: str | None) -> Arm:
        """Return the arm with its stable name."""
        return cls(arm_name(environment, workload, engine), environment, runs, workload, engine, reference)

    @property
    def shown(self) -> str:
        """The displayed name."""
        return shown_name(self.name)

    @property
    def is_control(self) -> bool:
        """Whether this is a second copy of a baseline."""
        return self.environment == CONTROL

    @property
    def is_uninterrupted_copy(self) -> bool:
        """Whether this is the uninterrupted copy of a reference that is itself interleaved."""
        return self.environment == f"{self.runs}{_COPY_SUFFIX}"

    def alone(self) -> Arm:
        """Return the uninterrupted copy of a reference, which is itself compared with nothing."""
        return Arm.of(f"{self.runs}{_COPY_SUFFIX}", self.runs, self.workload, self.engine, None)


@dataclass(frozen=True)
class Slot:
    """A planned trial: ``trial`` is its stable name, ``padding`` the length of a filler variable in its environment.

    ``look_s``: a steady-state run of this many seconds (see ``plan.steady_state_runs_after_blocks``), not a trial of a
    block.

    The padding moves the stack by a random amount, so that a lucky memory layout does not favour one environment
    (Mytkowicz et al., ASPLOS 2009).
    """

    trial: str
    block: int
    position: int
    arm: Arm
    padding: int
    look_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """The part of a design that the loop and the statistics need. Blocks have a random order, ``arms`` does not.

    ``race``: arms that are surely not the best, or surely the same as their reference, stop early. ``looked``: numbers
    of blocks at which the run was read (interim analyses). ``parts``: each compared arm runs in one of this many
    blocks, references and controls in all (incomplete blocks). ``claims_first``: the blocks for a verdict are run even
    beyond the budget. ``read_once``: nobody reads the run before its end, and it is never extended.
    """

    design: str
    arms: tuple[Arm, ...]
    seed: int
    min_blocks: int
    max_blocks: int
    target: float
    margin: float
    budget_s: float
    race: bool = False
    looked: tuple[int, ...] = ()
    parts: int = 1
    claims_first: bool = False
    read_once: bool = False

    @property
    def guaranteed_blocks(self) -> int:
        """How many blocks are run regardless of the budget."""
        return min(self.min_blocks * self.parts, self.max_blocks) if self.claims_first else 0

    def block(self, index: int) -> list[Slot]:
        """Return block ``index`` (from 0): each of its arms once, in an order that depends only on (seed, index)."""
        chance = self._random(index)
        arms = self.arms_of(index)
        order = chance.sample(arms, len(arms))
        return [
            Slot(trial_name(index, position), index, position, arm, chance.randrange(0, 4096))
            for position, arm in enumerate(order)
        ]

    def order(self, index: int) -> list[Arm]:
        """Return the arms of block ``index`` in their order."""
        arms = self.arms_of(index)
        return self._random(index).sample(arms, len(arms))

    def arms_of(self, index: int) -> tuple[Arm, ...]:
        """Return the arms of block ``index``: all, unless they are split over several blocks.

        An uninterrupted copy of a reference is only in blocks with an arm that is compared with it.
        """
        if self.parts == 1:
            return self.arms
        reference_names = {arm.reference for arm in self.arms}
        dealt = [arm for arm in self.arms if not (arm.is_control or arm.name in reference_names)]
        own_share = dealt[index % self.parts :: self.parts]
        block_arms = [arm for arm in self.arms if arm not in dealt or arm in own_share]
        used_references = {arm.reference for arm in block_arms}
        return tuple(arm for arm in block_arms if not arm.is_uninterrupted_copy or arm.name in used_references)

    def _random(self, index: int) -> random.Random:
        return random.Random(f"{self.seed}:{index}")  # noqa: S311 - an experiment's order, not a secret

    def blocks(self, first: int = 0) -> Iterator[list[Slot]]:
        """Yield the blocks from ``first`` to the last one allowed."""
        return (self.block(index) for index in range(first, self.max_blocks))


def trial_name(block: int, position: int) -> str:
    """Return the stable name of a trial."""
    return f"b{block:04d}-p{position:03d}"


def plan_of(design: Design, arms: tuple[Arm, ...], looked: tuple[int, ...] = (), parts: int = 1) -> Plan:
    """Return the plan of a design with known arms; pure, and the same for the same seed."""
    return Plan(
        design.name, arms, design.seed, design.min_blocks, design.max_blocks, design.target, design.margin,
        budget_s=design.budget, race=design.race, looked=looked, parts=parts, claims_first=design.claims_first,
        read_once=design.read_once,
    )  # fmt: skip


def arm_name(environment: str, workload: str, engine: str) -> str:
    """Return the stable identifier of an arm for the CLI, file names and reports."""
    return f"{environment}:{workload}@{engine}"


def shown_name(arm: str) -> str:
    """Return an arm's displayed name: 'a@local' for 'a:a@local', whose environment is named like the workload."""
    environment, _, where = arm.partition(":")
    return where if environment and where.rpartition("@")[0] == environment else arm


def make_arms(
    environments: tuple[str, ...],
    workloads: tuple[str, ...],
    engines: tuple[str, ...],
    baseline: str,
    application: tuple[str, ...] = (),
) -> tuple[Arm, ...]:
    """Cross environments, workloads and engines.

    Each arm is compared with the baseline of the same workload and engine. With several engines, the baseline on a
    further engine is compared with the baseline on the first one, to show the cost of an engine. ``application`` names
    workloads that change the program, not the environment. Each is run in the baseline environment and compared with
    the first workload, so that one table shows what each layer gains.
    """
    arms: list[Arm] = []
    for workload in workloads:
        for engine in engines:
            base, first = arm_name(baseline, workload, engine), arm_name(baseline, workload, engines[0])
            arms.append(Arm.of(baseline, baseline, workload, engine, None if base == first else first))
            arms.append(Arm.of(CONTROL, baseline, workload, engine, base))
            arms += [Arm.of(name, name, workload, engine, base) for name in environments if name != baseline]
            if workload == workloads[0]:
                arms += [Arm.of(name, baseline, name, engine, base) for name in application]
    return tuple(arms)


def old_and_new_arms(
    environments: tuple[str, ...], workloads: tuple[str, ...], engines: tuple[str, ...]
) -> tuple[Arm, ...]:
    """Return an arm per side and environment, with the old one as reference, and a control of the first."""
    arms: list[Arm] = []
    for workload in workloads:
        for engine in engines:
            for position, name in enumerate(environments):
                old_name, new_name = (f"{side}.{name}" for side in SIDES)
                base = arm_name(old_name, workload, engine)
                arms.append(Arm.of(old_name, old_name, workload, engine, None))
                if position == 0:
                    arms.append(Arm.of(CONTROL, old_name, workload, engine, base))
                arms.append(Arm.of(new_name, new_name, workload, engine, base))
    return tuple(arms)
