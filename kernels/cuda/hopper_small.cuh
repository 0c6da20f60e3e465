/* What small_product and the tables of its parts agree on; see hopper_small.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_HOPPER_SMALL_CUH
#define SMALLWORLD_KERNELS_CUDA_HOPPER_SMALL_CUH

enum {
    DEPTH = 64,         /* rows of activations of a stage */
    NO_SOURCE = 0xFFFF, /* beyond all rows: TMA brings zeros */
    PLACE_BITS = 8      /* of an entry: its place; of a list: how many entries */
};

#endif
