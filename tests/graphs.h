/* Graphs for tests: made, read, looked at. Each fails the test where it cannot. */
#ifndef SMALLWORLD_TESTS_GRAPHS_H
#define SMALLWORLD_TESTS_GRAPHS_H

#include "graph/graph.h"
#include "graph/metrics.h"

#include <stddef.h>

graph *make_graph(graph_options options, int nodes);
graph *graph_of_degree(graph_kind kind, int nodes, int degree, double rewire);

/* The path of a file of edges with this text, and the graph of such a file. */
const char *write_edges(const char *text);
graph *graph_from_text(const char *text, int nodes);

/* The path of a mask, of NumPy's type `type`. */
const char *write_mask(const char *type, int rows, int columns, const void *values, size_t bytes);

bool has_block(const graph *g, int output, int input);

/* Well-formed: ascending columns in range, every self-block. */
void check_form(const graph *g);

graph_metrics metrics_of(const graph *g);

/* FNV-1a over the numbers of a graph, in an order of bytes of its own. */
uint64_t hash_graph(const graph *g);

#endif
