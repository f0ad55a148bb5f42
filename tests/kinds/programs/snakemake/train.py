import sys
import time

import torch

steps = 4 * len(open(sys.argv[1]).readlines())
x = torch.randn(256, 256)
begin = time.perf_counter()
for _ in range(steps):
    x = torch.tanh(x @ x)
took = time.perf_counter() - begin
torch.save(x, sys.argv[2])
print(f"throughput: {steps / took:.1f} samples/s")
