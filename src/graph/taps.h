/* Convolutions as products: which position of the input each tap of a filter reads at each position
 * of the output. Positions are rows by columns of an image, in that order; a signal of one
 * dimension is an image of one row. */
#ifndef SMALLWORLD_GRAPH_TAPS_H
#define SMALLWORLD_GRAPH_TAPS_H

#include "core/error.h"

/* Tap (f, g) at output (r, c) reads input
 *
 *   (r stride[0] + f dilation[0] - pad[0][0],  c stride[1] + g dilation[1] - pad[1][0]),
 *
 * or zero outside the image. pad: zeros before and after, of rows and of columns. */
typedef struct conv_shape {
    int in[2], filter[2], stride[2], dilation[2], pad[2][2];
    int out[2]; /* what follows from these, see conv_shape_finish */
} conv_shape;

/* Refuses numbers that make no convolution, by their names; else sets `out`. */
bool conv_shape_finish(conv_shape *shape, error *err);

static inline int conv_positions(const int size[2]) {
    return size[0] * size[1];
}

/* No two outputs read the same input by the same tap, so that each input has at most one target by
 * each. Taps are numbered row by row of the filter. */
typedef struct tap_table {
    int taps, out_positions, in_positions;
    int *source; /* [out_positions][taps] the input that is read, -1: zero */
    int *target; /* [in_positions][taps] the output that reads it, -1: none */
} tap_table;

tap_table *taps_of(const conv_shape *shape);
void taps_free(tap_table *t);

#endif
