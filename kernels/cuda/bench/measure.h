/* What benchmarks need, see bench.h and measure.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_BENCH_MEASURE_H
#define SMALLWORLD_KERNELS_CUDA_BENCH_MEASURE_H

#include "device/device.h"

void cuda_mark(backend *be, int number);
double cuda_elapsed(backend *be, int from, int to);
extern const bench_tools cuda_bench_tools;

#endif
