/* The three products of a pair of backends on one layout or many. */
#ifndef SMALLWORLD_TESTS_PRODUCTS_H
#define SMALLWORLD_TESTS_PRODUCTS_H

#include "pair.h"

#include "graph/graph.h"

/* Returns the layout of a graph that is made by these options. */
layout *pattern_layout(const graph_options *options, int nodes, int block, int gates);

/* Compares fprop and dgrad, with results as operands and as reals, and wgrad if it takes so many
 * columns, on random values. All outputs are poisoned first. A failure shows `name`. */
void check_layout(pair *p, const layout *l, int columns, int steps, const char *name);

#endif
