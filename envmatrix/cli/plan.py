"""The ``envmatrix plan`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, whole_number
from envmatrix.durations_and_sizes import as_duration


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add_design(parser)
    declare(parser, "--blocks", "N", "how many blocks to show (default: 2)", whole_number(0), default=2)
    shared_options.add(parser, "--json")
    parser.examples("envmatrix plan quick", "envmatrix plan --environments tcmalloc,intel-omp --blocks 1")


def run(arguments: Arguments) -> None:
    """Print the environments and the first blocks of a design."""
    from envmatrix.api.plans import make_plan

    plan = console_io.call(make_plan, arguments, overrides=shared_options.read_overrides(arguments))
    shown_blocks = [plan.block(index) for index in range(min(arguments.blocks, plan.max_blocks))]
    blocks = [[{"trial": slot.trial, "arm": slot.arm.name} for slot in block] for block in shown_blocks]
    document = {"design": plan.design, "seed": plan.seed, "arms": [arm.name for arm in plan.arms], "blocks": blocks}
    lines = [
        f"design {plan.design}: {len(plan.arms)} trials a block, seed {plan.seed}, {plan.min_blocks} to "
        f"{plan.max_blocks} blocks",
        f"stops when every interval is within ±{plan.target:.1%}, or after {as_duration(plan.budget_s)}"
        + (f" and {plan.guaranteed_blocks} blocks" if plan.guaranteed_blocks else ""),
    ]
    for block in shown_blocks:
        lines += ["", f"block {block[0].block}:", *(f"  {slot.trial}  {slot.arm.shown}" for slot in block)]
    console_io.print_answer(arguments, document, "\n".join(lines))
