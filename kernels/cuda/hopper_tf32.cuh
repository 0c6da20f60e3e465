/* What shared_product and the tables of its parts agree on; see hopper_tf32.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_HOPPER_TF32_CUH
#define SMALLWORLD_KERNELS_CUDA_HOPPER_TF32_CUH

#include "cuda.h"

enum {
    SHARES = 2, /* lists of a part */
    SLOTS = SHARED_NODES,
    WINDOW = 16, /* sources that are looked up at a time ... */
    BLOCKS = 32  /* ... and blocks, one a lane */
};

#endif
