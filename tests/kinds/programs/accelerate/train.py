import time

import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
data = torch.utils.data.DataLoader(torch.randn(1024, 64), batch_size=16)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
begin = time.perf_counter()
for x in data:
    loss = model(x).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.wait_for_everyone()
accelerator.print(f"throughput: {1024 / (time.perf_counter() - begin):.1f} samples/s")
accelerator.end_training()
