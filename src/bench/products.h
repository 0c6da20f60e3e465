/* The benchmarks of block-sparse products and convolutions on a GPU: our time for every cell of a
 * grid, that of the dense product of the same shape, and the floors.
 *
 * Every time is the median over replays of a recording, after a warm-up, on random data. Operands
 * of products are rotated through more than twice the L2 (their weights alone, where that takes
 * less than 2 GB).
 *
 *   floor   the larger of memory (weights, inputs and outputs once, over the rate of a large copy)
 *           and arithmetic (2 N operations a weight, over the rate of a large dense product)
 *   dense   what the backend takes for a dense W: cuBLAS, and for wgrad of several steps on Hopper
 *           wgrad_gates
 *
 * wgrad's N is its depth: steps of up to 128 columns, as in training. Where the backend pads
 * columns, ours runs on the padded ones; the floor does not count them. */
#ifndef SMALLWORLD_BENCH_PRODUCTS_H
#define SMALLWORLD_BENCH_PRODUCTS_H

#include "bench.h"
#include "bench/timing.h"

#include <stdio.h>

enum product_axis {
    AXIS_PRECISION,
    AXIS_PRODUCT,
    AXIS_GATES,
    AXIS_PATTERN,
    AXIS_BLOCK,
    AXIS_COLUMNS,
    AXIS_DENSITY, /* in ten thousandths */
    AXES
};

enum { AXIS_MOST = 16, PER_DENSITY = 10000 };

/* The words of an axis whose values are their numbers. */
#define BENCH_PRECISIONS "bf16 fp32"
#define BENCH_PRODUCTS   "fprop dgrad wgrad" /* as in enum bench_product */
#define BENCH_PATTERNS   "random watts_strogatz barabasi_albert"

/* Every combination of the values is a cell. */
typedef struct product_axes {
    int values[AXES][AXIS_MOST], count[AXES];
} product_axes;

/* bf16, fprop, one gate, random, blocks of 32, N = 32, densities from 0.5 to 0.01. */
extern const product_axes product_default;

typedef struct product_cell {
    int at[AXES];
} product_cell;

typedef struct product_grid {
    int units;
    product_cell *cells;
    size_t count, capacity;
} product_grid;

/* Adds each combination that is possible with `units` units, once; and slices of the whole grid:
 * each axis in full, with the others at a few of their values. */
void product_grid_add(product_grid *g, const product_axes *axes);
void product_grid_add_full(product_grid *g);

/* What this device does with a large copy, in bytes a second, read and written, and with a large
 * dense product, in operations a second, in each of BENCH_PRECISIONS; 0: not measured. */
typedef struct device_rates {
    double copy, product[2];
} device_rates;

typedef struct product_row {
    product_cell cell;
    int blocks, padded; /* columns of our product */
    double density;     /* the pattern's */
    const char *kernel;
    double ours, dense, memory, arithmetic; /* seconds */
    double weight_bytes, table_bytes;       /* of W, and of its layout's tables on the device */
    double operations;
} product_row;

typedef struct product_results {
    char device[96];
    int units;
    device_rates rates;
    product_row *rows; /* in the order of the axes, then falling density; the caller frees them */
    size_t count;
    double seconds; /* of the whole benchmark */
} product_results;

typedef struct product_options {
    bool progress;
    const char *kernel; /* that is measured; NULL: the one that a model would choose */
    timing how;
} product_options;

/* Fails without a GPU. A signal (core/stop.h) ends it after the current cell. `results` then has
 * the cells that were measured, as it has after a failure. */
bool products_measure(product_grid *g, const product_options *options, product_results *results,
                      error *err);
void products_text(const product_results *results, FILE *out);
void products_json(const product_results *results, FILE *out); /* times in microseconds */

typedef struct conv_options {
    int features, block, images; /* features: of the input and of the output */
    conv_shape shape;
    int precision; /* of BENCH_PRECISIONS */
    double densities[AXIS_MOST];
    int density_count;
    timing how;
} conv_options;

typedef struct conv_results {
    char device[96];
    device_rates rates;
    double dense; /* seconds of a dense convolution at the rate of a dense product */
    struct {
        double density, seconds[PRODUCTS];
    } rows[AXIS_MOST];
    int count;
} conv_results;

/* Fails without a GPU. A pattern is random, with as many blocks in each row as in the others, to
 * within one. */
bool conv_measure(const conv_options *options, conv_results *results, error *err);
void conv_text(const conv_options *options, const conv_results *results, FILE *out);
void conv_json(const conv_options *options, const conv_results *results, FILE *out);

#endif
