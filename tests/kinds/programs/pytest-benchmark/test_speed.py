import torch


def test_matmul(benchmark):
    x = torch.ones(128, 128)
    assert benchmark(torch.mm, x, x)[0, 0] == 128
