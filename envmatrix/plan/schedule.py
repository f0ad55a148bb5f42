"""The plan: which arms are compared, and in which random order, block by block. Pure and seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from envmatrix.matrix import Design

#: Name of the second copy of the baseline (A/A): its interval is the noise floor.
CONTROL = "control"
#: What follows the name of a reference's copy that takes no turns; no environment of a matrix can be called so.
_COPY_SUFFIX = " alone"
#: The two sides of a run that compares two matrices; environments of the first are the references.
SIDES = ("old", "new")


@dataclass(frozen=True)
class Arm:
    """What is compared: one environment x workload x engine, against the arm named by ``reference``.

    ``environment`` is the name shown ('control' for the second copy of the baseline), ``runs`` the environment
    that is really run. The reference arm of a comparison has ``reference`` None.
    """

    name: str
    environment: str
    runs: str
    workload: str
    engine: str
    reference: str | None

    @property
    def shown(self) -> str:
        """Its name as people read it."""
        return shown_name(self.name)

    @property
    def is_control(self) -> bool:
        """Whether this is a second copy of a baseline."""
        return self.environment == CONTROL

    @property
    def is_alone(self) -> bool:
        """Whether this is the copy of a reference that runs on its own while the reference takes turns."""
        return self.environment == f"{self.runs}{_COPY_SUFFIX}"

    def alone(self) -> Arm:
        """Return that copy of a reference: it is itself compared with nothing."""
        environment = f"{self.runs}{_COPY_SUFFIX}"
        name = arm_name(environment, self.workload, self.engine)
        return Arm(name, environment, self.runs, self.workload, self.engine, None)


@dataclass(frozen=True)
class Slot:
    """One trial to be: ``trial`` is its stable name, ``padding`` the length of what fills up its environment.

    ``look_s``: it is no trial of a block, but a long look of so many seconds (``plan.looks``).

    The padding moves the stack by a random amount, so that one lucky memory layout does not stick to an
    environment (Mytkowicz et al., ASPLOS 2009).
    """

    trial: str
    block: int
    position: int
    arm: Arm
    padding: int
    look_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """What the loop and the statistics take of a design. ``arms`` keeps its order; within a block it is random.

    ``race``: arms that are surely not the best, or surely the same as their reference, leave before the end.
    ``looked``: after how many blocks the run has been read before. ``parts``: what is compared with a reference is
    dealt to so many blocks and runs in one of them, references and controls in all (incomplete blocks).
    ``claims_first``: the budget ends nothing before there are blocks enough for a claim.
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

    @property
    def first(self) -> int:
        """How many blocks are run whatever time they take."""
        return min(self.min_blocks * self.parts, self.max_blocks) if self.claims_first else 0

    def block(self, index: int) -> list[Slot]:
        """Return block ``index`` (from 0): each arm of it once, in an order that only (seed, index) decides."""
        chance = self._random(index)
        arms = self.arms_of(index)
        order = chance.sample(arms, len(arms))
        return [
            Slot(trial_name(index, position), index, position, arm, chance.randrange(0, 4096))
            for position, arm in enumerate(order)
        ]

    def order(self, index: int) -> list[Arm]:
        """Return the arms of block ``index`` as they stand in it."""
        arms = self.arms_of(index)
        return self._random(index).sample(arms, len(arms))

    def arms_of(self, index: int) -> tuple[Arm, ...]:
        """Return the arms that block ``index`` has: all, unless they are dealt to several.

        The copy of a reference that takes no turns is in those blocks alone that have something to compare with it.
        """
        if self.parts == 1:
            return self.arms
        reference_names = {arm.reference for arm in self.arms}
        dealt = [arm for arm in self.arms if not (arm.is_control or arm.name in reference_names)]
        own_share = dealt[index % self.parts :: self.parts]
        block_arms = [arm for arm in self.arms if arm not in dealt or arm in own_share]
        used_references = {arm.reference for arm in block_arms}
        return tuple(arm for arm in block_arms if not arm.is_alone or arm.name in used_references)

    def _random(self, index: int) -> random.Random:
        return random.Random(f"{self.seed}:{index}")  # noqa: S311 - an experiment's order, not a secret

    def blocks(self, first: int = 0) -> Iterator[list[Slot]]:
        """Yield the blocks from ``first`` to the last one allowed."""
        return (self.block(index) for index in range(first, self.max_blocks))


def trial_name(block: int, position: int) -> str:
    """Return the stable name of a trial."""
    return f"b{block:04d}-p{position:03d}"


def plan_of(design: Design, arms: tuple[Arm, ...], looked: tuple[int, ...] = (), parts: int = 1) -> Plan:
    """Return the plan of a design whose arms are known; pure, and the same for the same seed."""
    return Plan(
        design=design.name,
        arms=arms,
        seed=design.seed,
        min_blocks=design.min_blocks,
        max_blocks=design.max_blocks,
        target=design.target,
        margin=design.margin,
        budget_s=design.budget,
        race=design.race,
        looked=looked,
        parts=parts,
        claims_first=design.claims_first,
    )


def arm_name(environment: str, workload: str, engine: str) -> str:
    """Return the stable identifier used in the CLI, file names and reports alike."""
    return f"{environment}:{workload}@{engine}"


def shown_name(arm: str) -> str:
    """Return an arm's name as people read it: of a workload in an environment's place ('a:a@local') 'a@local'."""
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

    Each arm is compared with the baseline of the same workload and engine. With several engines, the baseline
    under a further engine is compared with the baseline under the first one, so that the cost of an engine shows.
    ``application`` names workloads that change the program instead of the environment: each is run in the baseline
    environment and compared with the first workload there, so that one table shows what each layer buys.
    """
    arms: list[Arm] = []
    for workload in workloads:
        for engine in engines:
            base = arm_name(baseline, workload, engine)
            baseline_arm = arm_name(baseline, workload, engines[0])
            arms.append(Arm(base, baseline, baseline, workload, engine, None if base == baseline_arm else baseline_arm))
            arms.append(Arm(arm_name(CONTROL, workload, engine), CONTROL, baseline, workload, engine, base))
            arms += [
                Arm(arm_name(name, workload, engine), name, name, workload, engine, base)
                for name in environments
                if name != baseline
            ]
            if workload == workloads[0]:
                arms += [Arm(arm_name(name, name, engine), name, baseline, name, engine, base) for name in application]
    return tuple(arms)


def side_arms(environments: tuple[str, ...], workloads: tuple[str, ...], engines: tuple[str, ...]) -> tuple[Arm, ...]:
    """Return an arm of each side for every environment, the old one as the reference, and a control of the first."""
    arms: list[Arm] = []
    for workload in workloads:
        for engine in engines:
            for position, name in enumerate(environments):
                old_name, new_name = (f"{side}.{name}" for side in SIDES)
                base = arm_name(old_name, workload, engine)
                arms.append(Arm(base, old_name, old_name, workload, engine, None))
                if position == 0:
                    arms.append(Arm(arm_name(CONTROL, workload, engine), CONTROL, old_name, workload, engine, base))
                arms.append(Arm(arm_name(new_name, workload, engine), new_name, new_name, workload, engine, base))
    return tuple(arms)
