/* What hopper_tf32 and the tables of its parts agree on; see tf32.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_TF32_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_TF32_CUH

#include "backend.h"

enum {
    SHARES = 2, /* lists of a part */
    SLOTS = TF32_NODES,
    WINDOW = 16, /* sources that are looked up at a time ... */
    BLOCKS = 32  /* ... and blocks, one a lane */
};

#endif
