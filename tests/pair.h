/* A backend under test and a more trusted one. The CPU in fp32 and bf16 is compared with the
 * reference in double; the GPU with the CPU in the same precision. */
#ifndef SMALLWORLD_TESTS_PAIR_H
#define SMALLWORLD_TESTS_PAIR_H

#include "support.h"

struct graph;

typedef struct pair {
    backend *be, *trusted;
    double tolerance; /* relative tolerance of the norm */
} pair;

/* The shape of a layer and of a product's inputs. */
typedef struct shape {
    int nodes, block, gates;
    int columns, steps; /* columns: in multiples of what a product takes */
    double share;
    bool hubs;
} shape;

pair open_pair(precision precision);
void close_pair(pair *p);

/* Asserts that both backends have the same result within the pair's tolerance. */
void assert_close(const pair *p, const char *what, const double *found, const double *expected,
                  size_t count);

/* Asserts the same of a product's results. Each of them must also be close to the expected one,
 * relative to its own size or to the root mean square of all. */
void assert_each_close(const pair *p, const char *what, const double *found, const double *expected,
                       size_t count);

/* Returns a graph with the given share of blocks that graph.h would never make: it has empty rows
 * and columns, a full row and a full column, and rows of one block. */
struct graph *nasty_graph(int nodes, double share, bool hubs);

#endif
