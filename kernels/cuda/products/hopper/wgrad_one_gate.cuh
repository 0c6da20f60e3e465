/* What wgrad_one_gate and wgrad_one_gate_pairs share with wgrad_one_gate_plan.cu, which makes their tasks. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_ONE_GATE_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_ONE_GATE_CUH

#include "products/hopper/hopper.cuh"

enum {
    TILES = 52,        /* operand tiles in shared memory */
    RING_BATCHES = 16, /* that a ring has, at most */
    PAIRS = 12,        /* that a warpgroup of wgrad_one_gate_pairs makes */
    SLOTS = 2,         /* tiles that a warp of wgrad_one_gate makes in a batch */
    BATCH = CONSUMER_WARPS * SLOTS,
    NO_TILE = 0xFFFF
};

#endif
