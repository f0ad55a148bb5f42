import time

import numpy
from joblib import Parallel, delayed


def work(seed):
    x = numpy.random.default_rng(seed).normal(size=(200, 200))
    for _ in range(100):
        x = numpy.tanh(x @ x)
    return float(x.sum())


if __name__ == "__main__":
    begin = time.perf_counter()
    Parallel(n_jobs=2)(delayed(work)(seed) for seed in range(8))
    print(f"throughput: {8 / (time.perf_counter() - begin):.2f} samples/s")
