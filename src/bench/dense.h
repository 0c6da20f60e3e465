/* Times of dense products: by cuBLAS on a GPU, in whichever order of its operands is faster; by the
 * backend's BLAS on the CPU. The ceilings and the dense model of equal width are computed from
 * them. */
#ifndef SMALLWORLD_BENCH_DENSE_H
#define SMALLWORLD_BENCH_DENSE_H

#include "bench.h"
#include "bench/timing.h"

/* `l` is dense; for wgrad, `columns` is its depth. Fails if there is not enough memory for the
 * operands. */
bool dense_time(backend *be, const layout *l, bench_product product, bench_math math, int columns,
                const timing *how, double *seconds, error *err);

/* Fills an array with random values; on the CPU a short sequence is repeated. */
void dense_randomise(backend *be, void *x, bench_math math, size_t count);

#endif
