/* Lists of the sources of nodes, for kernels whose thread blocks make several nodes from the union
 * of their sources, in an order in which neighbours have many in common. */
#ifndef SMALLWORLD_KERNELS_PLAN_NODE_LISTS_H
#define SMALLWORLD_KERNELS_PLAN_NODE_LISTS_H

#include "plan/plan.h"

/* The sources of node i are other[begin[i]], ..., other[end[i] - 1], in ascending order. */
typedef struct node_lists {
    int nodes, sources;
    const int *begin, *end, *other;
} node_lists;

/* The lists of fprop, input nodes by output node, and of dgrad, output nodes by input node. */
node_lists row_lists(const layout *l);
node_lists column_lists(const layout *l);

/* Orders the nodes so that each `group` successive ones share many sources, with about equally many
 * sources in each group; or leaves them in their own order where that has as few, as in small
 * worlds. */
void order_nodes(const node_lists *l, int group, int *order);

#endif
