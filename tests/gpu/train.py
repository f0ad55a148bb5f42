"""A user's own program: trains on the GPU, or causes the error named by its first argument."""

import sys
import time

import torch

how = sys.argv[1] if len(sys.argv) > 1 else "train"
if how == "too-much":
    torch.empty(2**50, device="cuda")
if how == "bad-index":  # fails an assertion in the kernel: the driver ends the process's work on the GPU
    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].cpu()
if how == "hold":
    held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    print("held", flush=True)
    time.sleep(300)
net = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
images, labels = torch.randn(256, 1024, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
torch.cuda.synchronize()
began = time.perf_counter()
for _ in range(400):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()
torch.cuda.synchronize()
print(f"speed {400 * 256 / (time.perf_counter() - began):.1f} images/s")
