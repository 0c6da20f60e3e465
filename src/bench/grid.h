/* The grid of the products' benchmark: its cells are the products and shapes to measure. */
#ifndef SMALLWORLD_BENCH_GRID_H
#define SMALLWORLD_BENCH_GRID_H

#include "bench.h"
#include "graph/graph.h"

#define BENCH_PRODUCTS   "fprop dgrad wgrad" /* in the order of enum bench_product */
#define BENCH_PRECISIONS "bf16 fp32"         /* in the order of bench_precisions */
#define BENCH_PATTERNS   "random watts_strogatz barabasi_albert" /* of bench_patterns */

/* A precision of the backend, and the arithmetic that libraries are given for it. */
typedef struct bench_precision {
    const char *name;
    precision precision;
    bench_math math;
} bench_precision;

typedef struct bench_pattern {
    const char *name;
    graph_kind kind;
} bench_pattern;

extern const bench_precision bench_precisions[];
extern const bench_pattern bench_patterns[];
extern const char *const bench_product_names[];

typedef struct grid_cell {
    int precision, pattern; /* indices into the tables above */
    bench_product product;
    int gates, block, columns;
    double density; /* the wanted density; the graph's is as near as possible */
} grid_cell;

typedef struct grid {
    int units;
    grid_cell *cells;
    size_t count, capacity;
} grid;

/* The values on each axis. Every combination is a cell. */
enum { AXIS_MOST = 16 };

typedef struct grid_axes {
    int precisions[AXIS_MOST], products[AXIS_MOST], gates[AXIS_MOST], patterns[AXIS_MOST];
    int blocks[AXIS_MOST], columns[AXIS_MOST];
    double densities[AXIS_MOST];
    int precision_count, product_count, gates_count, pattern_count;
    int block_count, columns_count, density_count;
} grid_axes;

/* bf16, fprop, one gate, random, block 32, N = 32, density 0.5 to 0.01. */
extern const grid_axes grid_default;

/* Adds each possible combination with `units` units, once. */
void grid_add(grid *g, const grid_axes *axes);

/* Adds slices of the whole grid, which would have 11,340 cells: each axis in full, with the others
 * at a few of their values. */
void grid_add_full(grid *g);

/* Sorts the cells for measuring: those that share a backend, and then a pattern, are neighbours. */
void grid_sort(grid *g);
void grid_free(grid *g);

#endif
