/* What one_gate and its plan agree on; see one_gate.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_ONE_GATE_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_ONE_GATE_CUH

#include "products/hopper/hopper.cuh"

/* Parts of the output nodes, whose results a thread block computes together, and the union of each
 * part's sources. There is a cut for up to 128 columns, for 256, for 512, and for more. Where
 * thread blocks share a part, each has an entry for its share of the sources. */
enum { ONE_GATE_NODES = 6, ONE_GATE_CUTS = 4 };

/* The high bits are the distance of the source's node from the previous one (from 0 for a part's
 * first source). The low bits say which of the part's nodes have a block for the source. A distance
 * that is too large for its bits is covered in several steps, by sources for which no node has a
 * block. */
typedef uint16_t one_gate_source;

typedef struct one_gate_parts {
    int count;           /* of whole parts */
    short slots, shares; /* the most nodes of a part; thread blocks that share one */
    short boxes;         /* of 64 columns, that a warpgroup makes */
    bool hubs;           /* whose lists are cut */
    void *part;          /* packed_part of as many slots */
    one_gate_source *source;
    partial_sums partial; /* of hubs */
} one_gate_parts;

typedef struct one_gate_tables {
    one_gate_parts forward[ONE_GATE_CUTS], backward[ONE_GATE_CUTS];
} one_gate_tables;

/* A part in memory, with as many nodes as there are slots; NO_NODE: an empty slot. A hub's list may
 * be cut into several split-K parts, each of this node alone. All but the last leave their partial
 * sums for the last one, the owner, which adds them to its own in order and finishes the node.
 * Contributing parts are scheduled before the owner, so the owner may spin on them without
 * deadlock. */
enum { NO_NODE = 0xFFFF, MOST_GIVEN = 128 /* parts that leave partial sums */ };

template <int SLOTS> struct packed_part {
    int first, start[SLOTS];     /* its sources; the first block of each node's list */
    uint16_t count, node[SLOTS]; /* count: of sources */
    uint8_t given; /* index of this split-K part, or of the first part that this owner adds up */
    uint8_t takes; /* number of parts that this owner adds up */
    bool gives;    /* whether it leaves its partial sums for an owner */
};

enum { ABREAST = 4 /* column tiles whose parts share weights in L2, see tile_of */ };

/* The number of nodes for whose sums a warpgroup has registers. */
static constexpr __host__ __device__ int one_gate_slots(int b) {
    return ONE_GATE_NODES * 32 / b;
}

/* The largest number of columns for which lists are cut. For every 64 of them a giving part takes a
 * slot of b x 64 sums. */
enum { MOST_CUT_COLUMNS = 512 };

#endif
