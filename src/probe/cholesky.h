/* Small symmetric systems: a = r r', r lower triangular. Matrices are row-major [n][n], of which
 * only the lower triangle is read and written. */
#ifndef SMALLWORLD_PROBE_CHOLESKY_H
#define SMALLWORLD_PROBE_CHOLESKY_H

#include <stdbool.h>
#include <stddef.h>

/* a becomes r. Returns false, with `a` spoilt, where a is not positive definite. */
bool cholesky(double *a, int n);

/* x [n][columns] becomes r^-1 x, or r'^-1 x. */
void cholesky_forward(const double *r, int n, double *x, size_t columns);
void cholesky_backward(const double *r, int n, double *x, size_t columns);

#endif
