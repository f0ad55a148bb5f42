"""Runs one bench command after the other, each in a fork of a process that has already imported torch.

What a run computes is the same, and its start costs nothing. Standard input: one JSON line a command, its arguments
and the file for what it says; standard output: its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import torch

from bench.__main__ import main

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first optimiser imports more of torch
gc.freeze()  # no fork looks through what torch has imported

for line in sys.stdin:
    argv, log = json.loads(line)
    child = os.fork()
    if not child:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.exit(main(argv))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
