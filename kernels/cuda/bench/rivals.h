/* The libraries' products, see bench.h. */
#ifndef SMALLWORLD_KERNELS_CUDA_BENCH_RIVALS_H
#define SMALLWORLD_KERNELS_CUDA_BENCH_RIVALS_H

extern "C" {
#include "bench.h"
}

rival *rival_create(backend *be, bench_library library, const bench_problem *problem, error *err);
size_t rival_weights(const rival *r);
bool rival_run(rival *r, const void *left, const void *right, void *out, error *err);
void rival_free(rival *r);

#endif
