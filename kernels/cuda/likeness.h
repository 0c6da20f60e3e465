/* Orders of nodes in which neighbours have many sources in common, for kernels whose thread blocks
 * make several nodes from the union of their sources. */
#ifndef SMALLWORLD_KERNELS_CUDA_LIKENESS_H
#define SMALLWORLD_KERNELS_CUDA_LIKENESS_H

#include "cuda.h"

/* The sources of node i are other[begin[i]], ..., other[end[i] - 1]. */
typedef struct node_lists {
    int nodes, sources;
    const int *begin, *end, *other;
} node_lists;

/* The input nodes of fprop's results, and the output nodes of dgrad's. */
node_lists row_lists(const layout *l);
node_lists column_lists(const layout *l);

/* How many sources each `group` successive nodes of an order have together, over all groups. */
int count_sources(const node_lists *l, const int *order, int group);

/* Whichever order has fewer sources so: the nodes' own, as in a small world, or one by likeness. */
void order_nodes(const node_lists *l, int group, int *order);

#endif
