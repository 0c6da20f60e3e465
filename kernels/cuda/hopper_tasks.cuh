/* What sampled_product and paired_product share with hopper_tasks.cu, which makes their tasks. */
#ifndef SMALLWORLD_KERNELS_CUDA_HOPPER_TASKS_CUH
#define SMALLWORLD_KERNELS_CUDA_HOPPER_TASKS_CUH

#include "hopper_tiles.cuh"

enum {
    TILES = 52,        /* operand tiles in shared memory */
    RING_BATCHES = 16, /* that a ring has, at most */
    PAIRS = 12,        /* that a warpgroup of paired_product makes */
    SLOTS = 2,         /* tiles that a warp of sampled_product makes in a batch */
    BATCH = CONSUMER_WARPS * SLOTS,
    NO_TILE = 0xFFFF
};

#endif
