/* The benchmark of the block-sparse products: our time for every cell of a grid, the libraries'
 * time for the same problem, and the floors.
 *
 * Every time is the median over replays of a recording, after a warm-up, on random data. Cold: the
 * operands are rotated through more than twice the L2 (their weights alone, where that takes less
 * than 2 GB). Hot: one set of operands, and the memory's floor is then the L2's.
 *
 *   floor  max(memory, arithmetic) + an empty node, see bench/cost.h
 *   share  floor / ours
 *
 * wgrad's N is its depth: steps of up to 128 columns, as in training. Where the backend pads
 * columns, ours runs on the padded ones; floors and libraries do not. */
#ifndef SMALLWORLD_BENCH_MATMUL_H
#define SMALLWORLD_BENCH_MATMUL_H

#include "bench/ceilings.h"
#include "bench/grid.h"
#include "bench/timing.h"

typedef struct matmul_row {
    grid_cell cell;
    int blocks;
    double density;            /* what the graph has */
    int padded;                /* columns that ours ran on */
    const char *kernel;        /* the name of the one that made ours */
    double ours;               /* seconds */
    double library[LIBRARIES]; /* seconds; NAN if it lacks the product */
    double parts[LIMITS];      /* seconds by limit, hot or cold */
    double floor;
    limit by;                         /* the largest part */
    double weight_bytes, table_bytes; /* of the operands' W and of its layout on the device */
    double operations;
} matmul_row;

typedef struct matmul_results {
    char device[96];
    int units;
    bool hot;
    ceilings ceilings;
    matmul_row *rows; /* precision, product, gates, pattern, block, N, then falling density */
    size_t count;
    double seconds; /* that the whole benchmark took */
} matmul_results;

typedef struct matmul_options {
    bool hot, libraries, progress; /* libraries: measure cuSPARSE too */
    const char *kernel;            /* the one to measure; NULL: as a model would choose */
    timing how;
} matmul_options;

/* Fails without a GPU. A signal to stop (core/stop.h) ends the benchmark after the current cell;
 * then, as after a failure, `results` has the cells measured so far. matmul_free frees them in any
 * case. */
bool matmul_run(grid *g, const matmul_options *options, matmul_results *results, error *err);
void matmul_free(matmul_results *results);

/* What limits the row: the largest part, or "launch". */
const char *matmul_limit(const matmul_results *results, const matmul_row *row);

#endif
