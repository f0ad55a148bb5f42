"""``envmatrix completion``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="whose completion")


def run(arguments: argparse.Namespace) -> int:
    """Print the script; `eval "$(envmatrix completion bash)"` switches it on."""
    import shtab

    from envmatrix.cli import whole_parser

    common.print_text(shtab.complete(whole_parser(), arguments.shell))
    return 0
