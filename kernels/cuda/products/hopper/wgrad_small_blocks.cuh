/* What wgrad_small_blocks shares with wgrad_small_blocks_plan.cu, which makes its tasks. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_SMALL_BLOCKS_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_SMALL_BLOCKS_CUH

#include "products/hopper/hopper.cuh"

/* There are kernels for a few and for some strips a warp, and for the most; this one, with blocks of
 * 8, leaves out in fours what its warps do not have. */
enum {
    STRIP_WARPS = 12, /* that multiply */
    STRIP_SUMS = 112, /* of a thread */
    FEW_STRIPS = 4,
    SOME_STRIPS = 8,
    STRIP_STEP = 4,
    STRIP_TILES = 220, /* in shared memory, of 8 rows x 64 columns */
    STRIP_BOXES = 256  /* of a stage, at most */
};

/* Strips that a warp makes, at most. */
static __host__ __device__ constexpr int strip_slots(int b) {
    return STRIP_SUMS / (b / 2);
}

#endif
