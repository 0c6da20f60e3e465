/* Graphs in which two nodes feed each other or neither does: dense, random, rings, tori, and growth
 * by degree; see graph.h. */
#ifndef SMALLWORLD_GRAPH_SYMMETRIC_H
#define SMALLWORLD_GRAPH_SYMMETRIC_H

#include "graph/graph.h"

/* Of at most GRAPH_MAX_NODES nodes. NULL where the options do not fit. */
graph *graph_symmetric(const graph_options *options, int nodes, error *err);

/* Whether exactly one of degree and density gives a number of blocks that such a graph can have. */
bool graph_check_size(const graph_options *options, int nodes, error *err);

#endif
