/* Small dense systems of equations, row-major. */
#ifndef SMALLWORLD_PROBE_CHOLESKY_H
#define SMALLWORLD_PROBE_CHOLESKY_H

#include <stdbool.h>
#include <stddef.h>

/* Replaces a symmetric matrix a [n][n] by its lower triangular factor r, a = r r'. Reads and writes
 * the lower triangle only. Returns false, with `a` overwritten, if a is not positive definite. */
bool cholesky_factor(double *a, size_t n);

/* Replaces x [n][columns] by r^-1 x, or by r'^-1 x. */
void cholesky_forward(const double *r, size_t n, double *x, size_t columns);
void cholesky_backward(const double *r, size_t n, double *x, size_t columns);

#endif
