import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
begin = time.perf_counter()
for _ in range(200):
    model(torch.randn(16, 64)).sum().backward()
dist.barrier()
if dist.get_rank() == 0:
    print(f"throughput: {200 * 32 / (time.perf_counter() - begin):.1f} samples/s")
dist.destroy_process_group()
