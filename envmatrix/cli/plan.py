"""The ``envmatrix plan`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, whole_number
from envmatrix.units import as_budget


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_design(parser)
    parser.add_argument(
        "--blocks", type=whole_number(0), default=2, metavar="N", help="how many blocks to show (default: 2)"
    )
    shared.add_json(parser)
    parser.examples("envmatrix plan quick", "envmatrix plan --environments tcmalloc,intel-omp --blocks 1")


def run(arguments: argparse.Namespace) -> int:
    """Print the environments and the first blocks of a design."""
    from envmatrix.api.plans import make_plan

    plan = make_plan(
        arguments.design,
        shared.read_overrides(arguments),
        arguments.engine or (),
        arguments.matrix,
        common.print_progress,
    )
    shown_blocks = [plan.block(index) for index in range(min(arguments.blocks, plan.max_blocks))]
    if arguments.json:
        blocks = [[{"trial": slot.trial, "arm": slot.arm.name} for slot in block] for block in shown_blocks]
        common.print_json(
            {"design": plan.design, "seed": plan.seed, "arms": [a.name for a in plan.arms], "blocks": blocks}
        )
        return 0
    lines = [
        f"design {plan.design}: {len(plan.arms)} trials a block, seed {plan.seed}, {plan.min_blocks} to "
        f"{plan.max_blocks} blocks",
        f"stops when every interval is within ±{plan.target:.1%}, or after {as_budget(plan.budget_s)}"
        + (f" and {plan.first} blocks" if plan.first else ""),
    ]
    for block in shown_blocks:
        lines += ["", f"block {block[0].block}:", *(f"  {slot.trial}  {slot.arm.shown}" for slot in block)]
    common.print_text("\n".join(lines))
    return 0
