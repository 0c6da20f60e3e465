/* One-hot matrices of text, as operands of tensor cores: 1 where a column's byte is, else 0. Never
 * stored: a byte is made a number in bf16, and one comparison of two such pairs makes a
 * register. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_ONE_HOT_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_ONE_HOT_CUH

#include "device/device.h"

/* A byte as a number in bf16, no two the same, none of them 0 or a NaN. */
static __device__ inline uint32_t label(uint32_t byte) {
    return 0x3F00 | byte;
}

static __device__ inline uint32_t label_pair(uint32_t one, uint32_t two) {
    return label(one) | label(two) << 16;
}

/* 1 or 0 for each of the two labels of `x`: whether it equals that of `y`. */
static __device__ inline uint32_t equal(uint32_t x, uint32_t y) {
    __nv_bfloat162 same = __heq2(*(__nv_bfloat162 *)&x, *(__nv_bfloat162 *)&y);
    return *(uint32_t *)&same;
}

#endif
