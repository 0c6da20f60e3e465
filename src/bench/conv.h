/* The benchmark of convolutions: the three products of one shape at several densities, beside what
 * a dense convolution takes at the measured rate of a dense product. */
#ifndef SMALLWORLD_BENCH_CONV_H
#define SMALLWORLD_BENCH_CONV_H

#include "bench/ceilings.h"
#include "bench/grid.h"
#include "bench/timing.h"
#include "graph/taps.h"

typedef struct conv_options {
    int features, block, images; /* features: of the input and of the output */
    conv_shape shape;
    int precision; /* of bench_precisions */
    double densities[AXIS_MOST];
    int density_count;
    timing how;
} conv_options;

typedef struct conv_row {
    double density;           /* the pattern's */
    double seconds[PRODUCTS]; /* fprop, dgrad, wgrad */
} conv_row;

typedef struct conv_results {
    char device[96];
    ceilings ceilings;
    double dense; /* seconds of a dense convolution at the measured rate, of each product */
    conv_row rows[AXIS_MOST];
    int count;
} conv_results;

/* Fails without a GPU. Operands are random, and the same in every replay. A pattern is random, with
 * as many blocks in each row as in the others, to within one. */
bool conv_measure(const conv_options *options, conv_results *results, error *err);

void conv_text(const conv_options *options, const conv_results *results, FILE *out);
void conv_json(const conv_options *options, const conv_results *results, FILE *out);

#endif
