/* How chain.cu's thread blocks and warps share a step's internal stages, for which chain_parts.cu
 * deals out the nodes. */
#ifndef SMALLWORLD_KERNELS_CUDA_CHAIN_CUH
#define SMALLWORLD_KERNELS_CUDA_CHAIN_CUH

#include "cuda.h"

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
