import time

import torch

exec(open("configurator.py").read())
model = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
optimizer = torch.optim.AdamW(model.parameters())
t0 = time.time()
for iter_num in range(max_iters):
    loss = model(torch.randn(32, 64, 32)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dt, t0 = time.time() - t0, time.time()
    print(f"iter {iter_num}: loss {loss.item():.4f}, time {dt * 1000:.2f}ms, mfu -100.00%")
