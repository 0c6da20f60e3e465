/* Patterns that change while a model learns: blocks that a graph loses, and blocks that it gains.
 * The same graph, norms and random numbers give the same result on every machine. */
#ifndef SMALLWORLD_GRAPH_EXCHANGE_H
#define SMALLWORLD_GRAPH_EXCHANGE_H

#include "core/philox.h"
#include "graph/graph.h"

/* Draws `count` blocks (output node, input node) that `g` lacks, each as likely, without repeats;
 * where it lacks fewer, all of them. `absent` has room for `count` and becomes ascending. Returns
 * how many. */
int graph_draw_absent(const graph *g, int count, philox_stream *random, int32_t (*absent)[2]);

/* The graph of such a list alone, without self-blocks. The caller frees it. */
graph *graph_of_absent(int nodes, const int32_t (*absent)[2], int count);

/* Leaves in such a list the `keep` blocks of largest norm, in its order. norms [count]; equal ones
 * stay in a random order. */
void graph_keep_strongest(int32_t (*absent)[2], const double *norms, int count, int keep,
                          philox_stream *random);

/* A graph that has what `g` has but for the `drop` blocks of smallest norm, and the `grow` blocks
 * of `grown`, which `g` lacks, ascending. norms [blocks of g]; equal ones fall in a random order.
 * Self-blocks stay: `drop` is at most the number of the others. The caller frees the result. */
graph *graph_exchange(const graph *g, const double *norms, int drop, const int32_t (*grown)[2],
                      int grow, philox_stream *random);

#endif
