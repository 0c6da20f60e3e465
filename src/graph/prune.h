/* Removes blocks from a pattern. The same graph, norms and random numbers give the same result on
 * every machine. */
#ifndef SMALLWORLD_GRAPH_PRUNE_H
#define SMALLWORLD_GRAPH_PRUNE_H

#include "core/philox.h"
#include "graph/graph.h"

/* Returns a graph like `g` without the `drop` blocks of smallest norm. norms [blocks of g]; ties
 * are broken at random. Self-blocks stay, so `drop` is at most the number of the other blocks. The
 * caller frees the graph. */
graph *graph_prune(const graph *g, const double *norms, int drop, philox_stream *random);

#endif
