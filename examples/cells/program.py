"""A program whose best environment is known: eight variables say how much it does. To try `envmatrix tune` with."""

import math
import os
import time

#: What a variable brings that is "1", in the log of the speed. "2" brings half of that, with its sign turned.
GAINS = {"A": 0.06, "B": -0.05, "C": 0.10, "D": 0.0, "E": 0.04, "F": -0.08, "G": 0.02, "H": 0.05}
SHARES = {"1": 1.0, "2": -0.5}

gain = sum(one * SHARES.get(os.environ.get(name, ""), 0.0) for name, one in GAINS.items())
work = int(400_000 * math.exp(-gain))
began, found = time.perf_counter(), 0
for number in range(work):
    found += number * number % 7
print("rate:", 1 / (time.perf_counter() - began))
