/* What small_blocks and the tables of its parts agree on; see small_blocks.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_SMALL_BLOCKS_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_SMALL_BLOCKS_CUH

enum {
    DEPTH = 64,         /* rows of activations of a stage */
    NO_SOURCE = 0xFFFF, /* beyond all rows: TMA brings zeros */
    PLACE_BITS = 8      /* of an entry: its place; of a list: how many entries */
};

#endif
