/* A quadratic model with the l1 norm on top, over n coordinates:
 *
 *     phi(u) = gradient . (u - w) + (u - w)' B (u - w) / 2 + |u|_1,   B = diag(base) - left right'
 *
 * with left and right of few columns, B positive definite. */
#ifndef SMALLWORLD_PROBE_L1_MODEL_H
#define SMALLWORLD_PROBE_L1_MODEL_H

#include <stddef.h>

typedef struct l1_model {
    size_t count, rank;
    double *w, *gradient, *base; /* [count] */
    double *left, *right;        /* [count][rank] */
} l1_model;

/* Zeroed arrays in one block, which l1_model_free frees. */
l1_model l1_model_create(size_t count, size_t rank);
void l1_model_free(l1_model *m);

/* u [count], at any start, becomes the minimum; its zeros are exact. Coordinate descent finds which
 * weights are 0, and Newton's method finds the others, since coordinate descent takes thousands of
 * sweeps on nearly collinear coordinates. */
void l1_model_minimise(const l1_model *m, double *u);

#endif
