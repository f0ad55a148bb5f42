"""``envmatrix init``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser
from envmatrix.errors import InputError, Where

_TEXT = """\
# What does each environment gain for your program? `envmatrix check` tells what is wrong with this file,
# `envmatrix bench` runs it. Every key is explained in docs/matrix.md of envmatrix.
version: 2
include: envmatrix:malloc                     # allocators, and an environment for each: `envmatrix list environments`

factors:
  torch:
    mine: {{interpreter: {interpreter}}}      # the Python that your program runs with; it is used as it is
  openmp:                                     # the first level of a factor is its reference
    own: {{}}                                 # whatever your PyTorch comes with
    intel:
      requirements: [intel-openmp==2025.3.3]
      preload: libiomp5.so
      claims: {{openmp: libiomp5}}            # proved from inside the process, or the trial is INVALID

environments:
  baseline: {{}}                              # every factor at its reference
  intel-omp: {{openmp: intel}}
  # both: {{openmp: intel, malloc: tcmalloc}}

workloads:
  mine:
    command: {command}
    # How fast was it? The last match of a regular expression in its output, a number in a JSON file it writes
    # (json_file: FILE:dotted.key), or the time it takes:
    metric: {{wall: true, better: lower}}
    # metric: {{regex: 'throughput: ([0-9.]+)', better: higher}}
    # What shows that it did the same work everywhere? Without it, answers say "equal work not checked":
    # check: {{regex: 'final loss: ([0-9.]+)', tolerance: 5%}}

designs:
  default:
    environments: [glibc-tuned, tcmalloc, jemalloc, intel-omp]
    workloads: mine
    target: 3%                                # stop when every interval is this narrow,
    budget: 30m                               # or after this time
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_output(parser, "FILE", "default: ./matrix.yaml", Path("matrix.yaml"))
    parser.add_argument("--interpreter", default="python3", metavar="PYTHON", help="default: python3")
    parser.takes_command("how your program is started (default: python train.py)")
    parser.examples("envmatrix init -- python train.py --epochs 1", "envmatrix init --interpreter .venv/bin/python")


def run(arguments: argparse.Namespace) -> int:
    """Write the file; one that is there is never overwritten."""
    from envmatrix.matrix.parse import parse

    command = arguments.command or ["python", "train.py"]
    # JSON's strings and lists are YAML too, and quote whatever the words hold.
    text = _TEXT.format(interpreter=json.dumps(arguments.interpreter), command=json.dumps(command))
    parse(text, arguments.output)
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(
            "it is already there", where=Where(arguments.output), remedy="name another file: --output FILE"
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=Where(arguments.output),
            remedy="name a file in a folder that is there and may be written: --output FILE",
        ) from error
    common.print_text(f"wrote {arguments.output}: look at it, then `envmatrix bench`")
    return 0
