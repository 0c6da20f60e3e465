/* What wgrad_gates and its plan agree on; see wgrad_gates.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_GATES_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_GATES_CUH

#include "products/hopper/hopper.cuh"

enum { WGRAD_GATES_UNITS = 256 /* of x, that a tile spans */ };

typedef struct wgrad_gates_tables {
    int tiles;
    int *first; /* [tiles + 1] the first block of each */
    int *row;   /* [blocks] the output node of each block */
} wgrad_gates_tables;

#endif
