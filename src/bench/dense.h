/* Times of dense products: by cuBLAS on a GPU, in whichever order of its operands is faster; by the
 * backend's BLAS on the CPU. What the ceilings and the dense model of equal width are made from. */
#ifndef SMALLWORLD_BENCH_DENSE_H
#define SMALLWORLD_BENCH_DENSE_H

#include "bench.h"
#include "bench/timing.h"

/* `l` is dense; `columns` is wgrad's depth. Fails where there is no room for the operands. */
bool dense_time(backend *be, const layout *l, bench_product product, bench_math math, int columns,
                const timing *how, double *seconds, error *err);

/* Random values; on the CPU the same few again and again. */
void dense_randomise(backend *be, void *x, bench_math math, size_t count);

#endif
