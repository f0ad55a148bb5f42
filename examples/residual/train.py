"""Trains a small residual network (He et al. 2015) on made-up pictures: no weights and no data are downloaded."""

import time

import torch
from torch import nn

STEPS, BATCH, SIDE, CLASSES = 80, 32, 32, 10


class Block(nn.Module):
    """Two convolutions beside a short cut; halves the sides where the channels grow."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        stride = 1 if inner == outer else 2
        self.path = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.short = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the pictures' features: (N, inner, H, W) to (N, outer, H', W')."""
        return torch.relu(self.path(pictures) + self.short(pictures))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
    Block(16, 16), Block(16, 32), Block(32, 64),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
labels = torch.randint(0, CLASSES, (STEPS * BATCH,))
pictures = torch.randn(STEPS * BATCH, 3, SIDE, SIDE) + labels.view(-1, 1, 1, 1) / CLASSES

begin = time.perf_counter()
for step in range(STEPS):
    batch = slice(step * BATCH, (step + 1) * BATCH)
    loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"throughput: {STEPS * BATCH / (time.perf_counter() - begin):.1f} pictures/s")
print(f"final loss: {loss.item():.4f}")
