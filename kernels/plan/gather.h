/* The tables of gather: parts of its work. */
#ifndef SMALLWORLD_KERNELS_PLAN_GATHER_H
#define SMALLWORLD_KERNELS_PLAN_GATHER_H

#include "plan/plan.h"

/* Parts of the nodes, and the union of each part's sources. Parts have whole nodes, in an order of
 * likeness. Or a few like nodes' sources are shared out over several parts, which all run at once.
 * Or the nodes' lists, one after another, are cut into equal parts, so that a part's first node may
 * begin in an earlier part and its last node continue in the next. There are several cuts, see
 * columns_of_cut. */
enum { PART_NODES = 6, GATHER_CUTS = 4, MOST_SHARES = 32 }; /* PART_NODES: at most */

typedef struct gather_part {
    int first, block;               /* its sources; their blocks */
    int first_part;                 /* where the first node's list begins */
    uint16_t count;                 /* of sources */
    unsigned char nodes, continues; /* continues: whether the last one's list goes on */
    unsigned char share, shares;    /* which of how many parts that have the same nodes */
    uint16_t node[PART_NODES];
} gather_part;

typedef struct gather_parts {
    int count, span; /* span: the most parts that one node's list lies in */
    bool whole;      /* whether nodes are, or their sources shared out ... */
    bool shared;     /* ... as they are here */
    gather_part *part;
    uint32_t *source; /* its node, and in the low PART_NODES bits which nodes have a block for it */
    int *block;       /* as they are used */
} gather_parts;

typedef struct gather_direction {
    gather_parts cut[GATHER_CUTS];
    partial_sums partial; /* of nodes of which several parts have sums */
} gather_direction;

typedef struct gather_tables {
    gather_direction forward, backward;
} gather_tables;

/* The columns for which each cut is planned, the most that it is for but for the last one. */
static const int columns_of_cut[GATHER_CUTS] = {128, 256, 512, 4096};

enum { TAPS_COLUMNS = 1 << 15 }; /* for which a convolution is planned, of all positions */

static inline int cut_of(int columns) {
    int cut = 0;
    while (cut < GATHER_CUTS - 1 && columns > columns_of_cut[cut]) cut++;
    return cut;
}

enum { LOOK_UP = 32 }; /* blocks that a warp looks up at once, however few are left */

/* The boxes of 64 columns that a warpgroup makes in this cut. */
PLAN_CONSTANT int boxes_of_cut(int b, int gates, int cut) {
    return cut == 0 || (b > 32 && gates > 1) ? 1 : 2;
}

/* The most nodes of a part. More nodes gather less; fewer leave room for more stages. */
PLAN_CONSTANT int nodes_of_part(int b, int gates, int boxes) {
    return b == 32 ? (gates == 1 ? 6 : 5) : b == 64 ? 3 : boxes == 1 ? 2 : 1;
}

/* The same of a convolution, whose producers need more registers. */
PLAN_CONSTANT int nodes_of_taps(int b) {
    return b == 32 ? 5 : b == 64 ? 2 : 1;
}

#endif
