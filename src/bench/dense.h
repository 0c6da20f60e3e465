/* Measures dense products: by cuBLAS on a GPU, in the faster order of its operands; by the backend
 * on the CPU, where sparse ones can be measured too. Ceilings and the dense model of equal width
 * use these times. */
#ifndef SMALLWORLD_BENCH_DENSE_H
#define SMALLWORLD_BENCH_DENSE_H

#include "bench.h"
#include "bench/timing.h"

/* Measures one product. `l` is dense on a GPU; for wgrad, `columns` is its depth. The CPU's
 * columns are padded to its products' multiple. Fails if memory for the operands is lacking. */
bool dense_time(backend *be, const layout *l, bench_product product, bench_math math, int columns,
                const timing *how, double *seconds, error *err);

/* Fills an array with random values. On the CPU these are a short repeated sequence. */
void dense_randomise(backend *be, void *x, bench_math math, size_t count);

#endif
