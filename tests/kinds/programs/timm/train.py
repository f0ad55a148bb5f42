import time

import timm
import torch

torch.manual_seed(0)
model = timm.create_model("mobilenetv3_small_050", num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
for step in range(20):
    begin = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    took = time.perf_counter() - begin
    if step % 5 == 4:
        print(
            f"Train: 0 [{step:>4d}/20]  Loss: {loss.item():.3f}  Time: {took:.3f}s, {8 / took:>7.2f}/s  LR: 1.000e-02"
        )
