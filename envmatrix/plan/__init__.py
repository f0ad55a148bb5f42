"""The plan of a run: environments, arms, blocks and their order. Nothing here touches the machine."""

from envmatrix.plan.schedule import (
    CONTROL,
    SIDES,
    Arm,
    Plan,
    Slot,
    arm_name,
    make_arms,
    plan_of,
    shown_name,
    trial_name,
)

__all__ = ["CONTROL", "SIDES", "Arm", "Plan", "Slot", "arm_name", "make_arms", "plan_of", "shown_name", "trial_name"]
