/* Layer norm's sums over features, which come from many thread blocks. So that they do not depend
 * on the order these finish in, each block's part is turned into 64-bit fixed point and added by
 * integer atomics: a part of ordinary size to a fine sum, a large one to a coarse sum, 2^24 times
 * coarser, so that either keeps at least fp32's precision. `coarse` says whether that one is in
 * use. What does not even fit there, and NaN, raises `broken`, which makes the statistics NaN. Per
 * gate:
 *
 *     int64 [which sum: 2][fine, coarse][columns]; int64 coarse, broken
 *     float [- mean / deviation, 1 / deviation][columns], which forward leaves for backward */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_CUH
#define SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_CUH

#include <cuda_runtime.h>

typedef unsigned long long fixed;

/* A thread block that makes sums of rows takes 64 rows of one gate and a span of 64 columns. */
enum { SUM_ROWS = 64, SUM_COLUMNS = 64, SUM_LANES = 4 };

/* Elements of one gate's sums. Whole spans of 64 columns, so that backward can keep each span's
 * sums apart. */
static __host__ __device__ inline size_t sums_gate(int columns) {
    return (size_t)((columns + 63) / 64) * (64 * 5 + 2);
}

/* Forward: sums of raw and of its square. Backward: sums of gain dpre and of that times v. */
#define SCALE_SUM    0x1p28f
#define SCALE_SQUARE 0x1p20f
#define SCALE_DSUM   0x1p34f
#define FIXED_LIMIT  0x1p47f /* of a part: 2^16 parts cannot overflow 2^63 */
#define COARSER      0x1p-24f

static __device__ inline void add_fixed(fixed *sums, int columns, int which, int column,
                                        float value, float scale) {
    fixed *fine = sums + (size_t)which * 2 * columns + column;
    float scaled = value * scale;
    if (fabsf(scaled) < FIXED_LIMIT) {
        atomicAdd(fine, (fixed)__float2ll_rn(scaled));
    } else if (fabsf(scaled * COARSER) < FIXED_LIMIT) {
        atomicAdd(fine + columns, (fixed)__float2ll_rn(scaled * COARSER));
        atomicOr(&sums[(size_t)columns * 4], 1ull);
    } else {
        atomicOr(&sums[(size_t)columns * 4 + 1], 1ull);
    }
}

/* One sum as it lies in memory. Fetch all sums that you need before you decode the first, so that
 * their loads overlap. */
typedef struct fixed_sum {
    fixed fine, is_coarse, broken;
    const fixed *coarse;
} fixed_sum;

static __device__ inline fixed_sum fetch_fixed(const fixed *sums, int columns, int which,
                                               int column) {
    const fixed *fine = sums + (size_t)which * 2 * columns + column;
    const fixed *flags = sums + (size_t)columns * 4;
    fixed_sum s = {fine[0], flags[0], flags[1], fine + columns};
    return s;
}

static __device__ inline float decode_fixed(const fixed_sum &s, float scale) {
    if (s.broken) return __int_as_float(0x7FC00000);
    if (!s.is_coarse) return (float)(long long)s.fine / scale;
    return (float)((double)(long long)s.fine / scale +
                   (double)(long long)*s.coarse / ((double)scale * COARSER));
}

/* Where a gate keeps its statistics: [- mean / deviation, 1 / deviation][columns]. */
static __device__ inline float *kept_statistics(fixed *sums, int columns) {
    return (float *)(sums + (size_t)columns * 4 + 2);
}

/* Sums of kernels that need them at once: every thread block of a grid adds one part to each, at
 * about the same time, and then needs them all. A fine sum counts its parts, so it is read until
 * they are all there, which takes neither a barrier nor a second way to the L2:
 *
 *     48 bits of the sum, 8 of how many parts went elsewhere, 8 of how many there are
 *
 * The grid has no more thread blocks than there are multiprocessors, so that all run at once. */
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
