/* Graphs for tests: functions that make, read and check them. Each fails the test on an error. */
#ifndef SMALLWORLD_TESTS_GRAPHS_H
#define SMALLWORLD_TESTS_GRAPHS_H

#include "graph/graph.h"
#include "graph/metrics.h"

#include <stddef.h>

graph *make_graph(graph_options options, int nodes);
graph *graph_of_degree(graph_kind kind, int nodes, int degree, double rewire);

/* Writes a file of edges with this text. Returns its path, or the graph read from it. */
const char *write_edges(const char *text);
graph *graph_from_text(const char *text, int nodes);

/* Writes a mask of NumPy's type `type`. Returns its path. */
const char *write_mask(const char *type, int rows, int columns, const void *values, size_t bytes);

bool has_block(const graph *g, int output, int input);

/* Asserts that columns are ascending and in range and that every self-block exists. */
void check_form(const graph *g);

graph_metrics metrics_of(const graph *g);

/* Returns an FNV-1a hash of the graph's numbers that does not depend on the byte order. */
uint64_t hash_graph(const graph *g);

#endif
