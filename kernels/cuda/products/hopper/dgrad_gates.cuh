/* What dgrad_gates shares with dgrad_gates_plan.cu, which cuts its parts. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_DGRAD_GATES_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_DGRAD_GATES_CUH

#include "products/hopper/hopper.cuh"

/* Parts of the nodes, and the union of each part's sources. Either parts have whole nodes, in an
 * order of likeness; or the nodes' lists, one after another, are cut into equal parts, so that a
 * part's first node may begin in an earlier part and its last node continue in the next. There is a
 * cut for one tile of columns, for two, for four, and for more. */
enum { PART_NODES = 5, DGRAD_GATES_CUTS = 4 }; /* PART_NODES: at most */

typedef struct dgrad_gates_part {
    int first, block;               /* its sources; their blocks */
    int first_part;                 /* where the first node's list begins */
    uint16_t count;                 /* of sources */
    unsigned char nodes, continues; /* continues: whether the last one's list goes on */
    uint16_t node[PART_NODES];
} dgrad_gates_part;

typedef struct dgrad_gates_parts {
    int count, span; /* span: the most parts that one node's list lies in */
    bool whole;      /* whether nodes are */
    dgrad_gates_part *part;
    uint32_t *source; /* its node, and in the low PART_NODES bits which nodes have a block for it */
    int *block;       /* as they are used */
} dgrad_gates_parts;

typedef struct dgrad_gates_tables {
    dgrad_gates_parts cut[DGRAD_GATES_CUTS];
    partial_sums partial; /* of nodes whose lists are cut */
} dgrad_gates_tables;

enum { LOOK_UP = 32 }; /* blocks that a warp looks up at once, however few are left */

/* The most nodes of a part. More nodes gather less; fewer leave room for more stages. */
static constexpr __host__ __device__ int nodes_of_part(int b) {
    return b == 32 ? 5 : b == 64 ? 3 : 2;
}

static_assert(nodes_of_part(32) <= PART_NODES, "a source has a bit for each");

#endif
