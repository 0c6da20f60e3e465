/* Lists of the sources of nodes, for kernels whose thread blocks make several nodes from the union
 * of their sources: merged, and in an order in which neighbours have many in common. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_NODE_LISTS_H
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_NODE_LISTS_H

#include "layout.h"

/* The sources of node i are other[begin[i]], ..., other[end[i] - 1], in ascending order. */
typedef struct node_lists {
    int nodes, sources;
    const int *begin, *end, *other;
} node_lists;

/* The lists of fprop, input nodes by output node, and of dgrad, output nodes by input node. */
node_lists row_lists(const layout *l);
node_lists column_lists(const layout *l);

/* One step of a merge. Returns the smallest source at the fronts of `count` lists, other[at[m]],
 * ..., other[stop[m] - 1], or -1 once all lists have ended. Bit m of `mask` says whether it is at
 * the front of list m. */
int next_source(const int *other, int count, const int *at, const int *stop, uint32_t *mask);

/* Steps past it. */
static inline void step_past(uint32_t mask, int count, int *at) {
    for (int m = 0; m < count; m++) at[m] += mask >> m & 1;
}

/* Keeps the given order if groups of `group` successive nodes have fewer sources in it than in the
 * nodes' own order, which is good for small worlds. Otherwise restores the nodes' own order. */
void keep_if_fewer(const node_lists *l, int group, int *order);

/* Orders the nodes so that each `group` successive ones share many sources, with about equally many
 * sources in each group. The groups take turns: each takes the node that shares most sources with
 * it, so the last nodes, which share few, are spread over all groups. */
void order_in_turns(const node_lists *l, int group, int *order);

/* Groups of neighbouring blocks of a row, for wgrad: one tile of dy serves a group. */
typedef struct row_groups {
    int count;
    int *first; /* [count + 1] on the device: the first block of each */
    int *row;   /* [blocks] on the device: the output node of each block */
} row_groups;

/* Makes groups of at most `width` units of x, so that all groups of a row are of nearly equal size.
 * They belong to the layout. */
row_groups *row_groups_create(backend *be, device_layout *device, const layout *l, int width);

/* The first member of the parts of every plan. */
typedef struct part_rank {
    double cost; /* a measure of the time that the part takes */
    int number;  /* how many were made before it */
} part_rank;

/* Sorts `count` parts of `bytes` bytes each: the costliest come first, and those of equal cost stay
 * in their order. */
void sort_by_cost(void *parts, int count, size_t bytes);

#endif
