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
    double density;            /* the graph's density */
    int padded;                /* number of columns of our product */
    const char *kernel;        /* name of our kernel */
    double ours;               /* seconds */
    double library[LIBRARIES]; /* seconds; NAN if it lacks the product */
    double parts[LIMITS];      /* seconds by limit */
    double floor;
    limit by;                         /* the largest part */
    double weight_bytes, table_bytes; /* size of W, and of its layout's tables on the device */
    double operations;
} matmul_row;

typedef struct matmul_results {
    char device[96];
    int units;
    ceilings ceilings;
    matmul_row *rows; /* precision, product, gates, pattern, block, N, then falling density */
    size_t count;
    double seconds; /* duration of the whole benchmark */
} matmul_results;

typedef struct matmul_options {
    bool libraries, progress; /* libraries: measure cuSPARSE too */
    const char *kernel;       /* kernel to measure; NULL: the one that a model would choose */
    timing how;
} matmul_options;

/* Runs the benchmark. Fails without a GPU. A signal (core/stop.h) ends it after the current cell.
 * `results` then holds the cells measured so far, as it does after a failure. The caller frees it
 * with matmul_free in any case. */
bool matmul_run(grid *g, const matmul_options *options, matmul_results *results, error *err);
void matmul_free(matmul_results *results);

/* Returns the limit of the row, its largest part, or "launch". */
const char *matmul_limit(const matmul_results *results, const matmul_row *row);

#endif
