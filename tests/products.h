/* The three products of a pair of backends on one layout or many. */
#ifndef SMALLWORLD_TESTS_PRODUCTS_H
#define SMALLWORLD_TESTS_PRODUCTS_H

#include "pair.h"

#include "graph/graph.h"

/* Returns the layout of a graph that is made by these options. */
layout *pattern_layout(const graph_options *options, int nodes, int block, int gates);

/* Compares fprop and dgrad, to operands and to reals, and wgrad where it takes so many columns, on
 * random values. All outputs are poisoned first. `name` says in a failure what was computed. */
void check_layout(pair *p, const layout *l, int columns, int steps, const char *name);

/* The same on a random pattern for each shape. */
void check_shapes(pair *p, const shape *shapes, size_t count);

#endif
