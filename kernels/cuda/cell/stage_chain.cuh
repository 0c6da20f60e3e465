/* How stage_chain.cu's thread blocks and warps share a step's internal stages, for which
 * stage_chain_plan.cu deals out the nodes. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_CUH

#include "cell/stage_chain.h"
#include "layout.h"

/* A part: the nodes that a thread block computes for 32 columns, the list of their blocks, node
 * after node, and the tasks of each node. */
enum {
    CHAIN_STAGES = 8, /* internal ones, at most */
    CHAIN_NODES = 10, /* of a part, at most */
    CHAIN_SLOTS = 76, /* for its blocks */
    CHAIN_CUTS = 2,   /* for 64 columns, and for 128 */
    CHAIN_PARTS = 256 /* of all column slices */
};

typedef struct chain_part {
    uint32_t first[CHAIN_NODES]; /* of the layout's list of a node */
    uint16_t nodes, node[CHAIN_NODES];
    uint16_t slot[CHAIN_NODES + 1], task[CHAIN_NODES + 1]; /* where a node's begin */
    uint16_t unused;                                       /* to whole words */
} chain_part;

enum { CHAIN_WORDS = CHAIN_PARTS * 65 /* sums of 32 columns, and a flag */ };

typedef struct chain_parts {
    int count, slots; /* slots: the most blocks of a part; count 0: they do not fit */
    chain_part *part;
} chain_parts;

struct stage_chain_tables {
    chain_parts forward[CHAIN_CUTS], backward[CHAIN_CUTS];
    unsigned long long *words; /* [CHAIN_WORDS]: of a chain whose first stage this is */
    float *unit_sums;          /* [slices][2][units]: over the steps of a sequence */
};

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
