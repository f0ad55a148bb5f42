import time

import numba
import numpy


@numba.njit(parallel=True, cache=True)
def total(x):
    result = 0.0
    for i in numba.prange(len(x)):
        result += numpy.sin(x[i])
    return result


x = numpy.ones(2_000_000)
total(x)
begin = time.perf_counter()
for _ in range(10):
    total(x)
print(f"throughput: {20 / (time.perf_counter() - begin):.1f} Msamples/s")
