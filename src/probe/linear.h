/* Small dense systems of equations, row-major. */
#ifndef SMALLWORLD_PROBE_LINEAR_H
#define SMALLWORLD_PROBE_LINEAR_H

#include <stdbool.h>
#include <stddef.h>

/* a [n][n] symmetric becomes r, lower triangular, a = r r'; only the lower triangle is read and
 * written. Returns false, with `a` overwritten, if a is not positive definite. */
bool linear_cholesky(double *a, size_t n);

/* x [n][columns] becomes r^-1 x, or r'^-1 x. */
void linear_forward(const double *r, size_t n, double *x, size_t columns);
void linear_backward(const double *r, size_t n, double *x, size_t columns);

/* x [n][columns] becomes a^-1 x, for any a [n][n] that is not singular; overwrites a. */
void linear_solve(double *a, size_t n, double *x, size_t columns);

#endif
