/* Layer norm's sums over features. Every thread block of a grid adds one part to each, at about the
 * same time, and then needs them all. So that they do not depend on the order of parts, each is
 * turned into fixed point and added by integer atomics: a part of ordinary size to a fine sum, a
 * large one to a coarse sum, 2^15 times coarser, so that either keeps at least fp32's precision.
 * What does not even fit there, and NaN, raises `broken`, which makes the statistics NaN. A fine
 * sum counts its parts, so it is read until they are all there, which takes neither a barrier nor a
 * second way to the L2:
 *
 *     48 bits of the sum, 8 of how many parts went elsewhere, 8 of how many there are
 *
 * The grid has no more thread blocks than there are multiprocessors, so that all run at once. Per
 * gate:
 *
 *     int64 [which sum: 2][fine, coarse][columns]; int64 unused, broken
 *     float [- mean / deviation, 1 / deviation][columns], which forward leaves for backward */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_CUH
#define SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_CUH

#include <cuda_runtime.h>

typedef unsigned long long fixed;

/* Elements of one gate's sums. Whole spans of 64 columns, so that backward can keep each span's
 * sums apart. */
static __host__ __device__ inline size_t sums_gate(int columns) {
    return (size_t)((columns + 63) / 64) * (64 * 5 + 2);
}

/* Forward: sums of raw and of its square. Backward: sums of gain dpre and of that times v. */
#define SCALE_SUM    0x1p28f
#define SCALE_SQUARE 0x1p20f
#define SCALE_DSUM   0x1p34f

/* Where a gate keeps its statistics: [- mean / deviation, 1 / deviation][columns]. */
static __device__ inline float *kept_statistics(fixed *sums, int columns) {
    return (float *)(sums + (size_t)columns * 4 + 2);
}

enum { COUNTED_PARTS = 255 };
#define COUNTED_LIMIT   0x1p38f /* of a fine part, and of a coarse one: */
#define COARSE_LIMIT    0x1p54f
#define COUNTED_COARSER 0x1p-15f

static __device__ inline void add_counted(fixed *sums, int columns, int which, int column,
                                          float value, float scale = SCALE_DSUM) {
    fixed *fine = sums + (size_t)which * 2 * columns + column;
    float scaled = value * scale, coarse = scaled * COUNTED_COARSER;
    if (fabsf(scaled) < COUNTED_LIMIT) {
        atomicAdd(fine, ((fixed)__float2ll_rn(scaled) << 16) + 1);
        return;
    }
    if (fabsf(coarse) < COARSE_LIMIT) {
        atomicAdd(fine + columns, (fixed)__float2ll_rn(coarse));
    } else {
        atomicOr(&sums[(size_t)columns * 4 + 1], 1ull);
    }
    __threadfence();
    atomicAdd(fine, (1 << 8) + 1);
}

static __device__ inline fixed fetch_counted(const fixed *sums, int columns, int which,
                                             int column) {
    return *(const volatile fixed *)(sums + (size_t)which * 2 * columns + column);
}

static __device__ inline unsigned parts_of(fixed sum) {
    return sum & 255;
}

/* The value of a sum, once all of its parts have arrived. */
static __device__ inline float decode_counted(fixed sum, const fixed *sums, int columns, int which,
                                              int column, float scale = SCALE_DSUM) {
    const long long fine = (long long)sum >> 16;
    if ((sum >> 8 & 255) == 0) return (float)fine / scale;
    __threadfence();
    if (*(const volatile fixed *)(sums + (size_t)columns * 4 + 1)) {
        return __int_as_float(0x7FC00000);
    }
    const long long coarse = (long long)fetch_counted(sums + columns, columns, which, column);
    return (float)((double)fine / scale + (double)coarse / ((double)scale * COUNTED_COARSER));
}

#endif
