/* What dgrad_gates shares with dgrad_gates_plan.cu, which cuts its parts. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_DGRAD_GATES_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_DGRAD_GATES_CUH

#include "products/hopper/hopper.cuh"

enum { LOOK_UP = 32 }; /* blocks that a warp looks up at once, however few are left */

/* The most nodes of a part: more of them gather less, fewer leave room for more stages. */
static constexpr __host__ __device__ int nodes_of_part(int b) {
    return b == 32 ? 5 : b == 64 ? 3 : 2;
}

static_assert(nodes_of_part(32) <= PART_NODES, "a source has a bit for each");

#endif
