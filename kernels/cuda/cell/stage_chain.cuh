/* How stage_chain.cu's thread blocks and warps share a step's internal stages, for which stage_chain_plan.cu
 * deals out the nodes. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_CUH

#include "backend.h"

enum {
    UNITS = 32, /* of a node */
    SLICE = 32, /* columns of a thread block */
    WARPS = 16,
    READERS = 8,       /* warps that read either sum of other parts ... */
    PARTS_OF_WARP = 10 /* ... so many parts', at most */
};

static_assert(2 * READERS == WARPS && (int)CHAIN_NODES <= WARPS,
              "work for all warps, and they suffice");

#endif
