"""Process that runs bench commands one after the other, each in a fork after torch has been imported.

The results are the same, without the time to start. Standard input: one JSON line per command with its arguments and
the log file; standard output: the exit status.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import torch

from bench.command_line import main

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first optimiser imports further parts of torch
gc.freeze()  # garbage collection in a fork skips what torch has imported

for line in sys.stdin:
    argv, log = json.loads(line)
    child = os.fork()
    if not child:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.exit(main(argv))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
