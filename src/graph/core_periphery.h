/* A dense core with a sparse periphery, see graph.h. */
#ifndef SMALLWORLD_GRAPH_CORE_PERIPHERY_H
#define SMALLWORLD_GRAPH_CORE_PERIPHERY_H

#include "graph/graph.h"

graph *core_periphery_create(const graph_options *options, int nodes, error *err);

#endif
