import sys
import time

import torch

steps = 4 * len(open(sys.argv[1]).readlines())
x = torch.randn(256, 256)
begin = time.perf_counter()
for _ in range(steps):
    x = torch.tanh(x @ x)
print(f"throughput: {steps / (time.perf_counter() - begin):.1f} samples/s")
