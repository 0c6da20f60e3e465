/* Changes patterns while a model learns: a graph loses some blocks and gains others. The same
 * graph, norms and random numbers give the same result on every machine. */
#ifndef SMALLWORLD_GRAPH_EXCHANGE_H
#define SMALLWORLD_GRAPH_EXCHANGE_H

#include "core/philox.h"
#include "graph/graph.h"

/* Draws `count` blocks (output node, input node) that `g` lacks, uniformly and without repeats, or
 * all of them if there are fewer. `absent` has room for `count` and becomes ascending. Returns the
 * number of blocks drawn. */
int graph_draw_absent(const graph *g, int count, philox_stream *random, int32_t (*absent)[2]);

/* Returns the graph of such a list alone, without self-blocks. The caller frees it. */
graph *graph_of_absent(int nodes, const int32_t (*absent)[2], int count);

/* Keeps the `keep` blocks of largest norm in such a list, in its order. norms [count]; ties are
 * broken at random. */
void graph_keep_strongest(int32_t (*absent)[2], const double *norms, int count, int keep,
                          philox_stream *random);

/* Returns a graph like `g` without the `drop` blocks of smallest norm and with the `grow` blocks of
 * `grown`, which `g` lacks, ascending. norms [blocks of g]; ties are broken at random. Self-blocks
 * stay, so `drop` is at most the number of the other blocks. The caller frees the graph. */
graph *graph_exchange(const graph *g, const double *norms, int drop, const int32_t (*grown)[2],
                      int grow, philox_stream *random);

#endif
