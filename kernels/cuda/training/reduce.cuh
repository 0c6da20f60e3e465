/* Sums of a thread block, and of the partial sums that cuda_partials leaves. */
#ifndef SMALLWORLD_KERNELS_CUDA_TRAINING_REDUCE_CUH
#define SMALLWORLD_KERNELS_CUDA_TRAINING_REDUCE_CUH

#include "training/training.h"

enum { REDUCE_THREADS = 256 };

/* The sum of a value of every thread, in a fixed order; thread 0 gets it. */
template <typename V> static __device__ V block_sum(V value) {
    __shared__ V shared[REDUCE_THREADS];
    shared[threadIdx.x] = value;
    for (int half = REDUCE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    return shared[0];
}

static __device__ double sum_partials(const double *partial, int count) {
    double total = 0;
    for (int i = threadIdx.x; i < count; i += REDUCE_THREADS) total += partial[i];
    return block_sum(total);
}

#endif
