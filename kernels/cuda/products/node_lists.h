/* Lists of the sources of nodes, for kernels whose thread blocks make several nodes from the union
 * of their sources: merged, and in an order in which neighbours have many in common. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_NODE_LISTS_H
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_NODE_LISTS_H

#include "backend.h"

/* The sources of node i are other[begin[i]], ..., other[end[i] - 1], in ascending order. */
typedef struct node_lists {
    int nodes, sources;
    const int *begin, *end, *other;
} node_lists;

/* The input nodes of fprop's results, and the output nodes of dgrad's. */
node_lists row_lists(const layout *l);
node_lists column_lists(const layout *l);

/* The least source of those that `count` lists, other[at[m]], ..., other[stop[m] - 1], begin with,
 * and in a bit each which of them do; -1 and none where all are at their end. */
int next_source(const int *other, int count, const int *at, const int *stop, uint32_t *mask);

/* Steps past it. */
static inline void step_past(uint32_t mask, int count, int *at) {
    for (int m = 0; m < count; m++) at[m] += mask >> m & 1;
}

/* Puts the nodes back into their own order, as in a small world, unless in this one each `group`
 * successive nodes have fewer sources together. */
void keep_if_fewer(const node_lists *l, int group, int *order);

/* An order in which each `group` successive nodes have many sources in common, if it has fewer
 * so. */
void order_nodes(const node_lists *l, int group, int *order);

/* The same with groups of about equally many sources: they take turns, each with that node of those
 * left which shares most with the group so far, so that what is left in the end, and shares little,
 * is spread over all groups. */
void order_in_turns(const node_lists *l, int group, int *order);

/* What the parts of a plan begin with, whichever kernel's they are. */
typedef struct part_rank {
    double cost; /* a measure of the time that the part takes */
    int number;  /* how many were made before it */
} part_rank;

/* Sorts `count` parts of `bytes` bytes each: the costliest come first, and those of equal cost stay
 * in their order. */
void sort_by_cost(void *parts, int count, size_t bytes);

#endif
