import torch


def test_matmul(benchmark):
    x = torch.ones(512, 512)
    assert benchmark(torch.mm, x, x)[0, 0] == 512
