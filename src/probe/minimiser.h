/* Minimises a smooth convex loss plus |w|^2 / 2 over all of w by L-BFGS (Liu, Nocedal 1989).
 *
 * The caller evaluates, so that many minimisers can share one pass over the data:
 *
 *     m = minimiser_create(...);
 *     while (!minimiser_stalled(m) && the result is not yet good enough)
 *         minimiser_tell(m, loss and gradient at minimiser_trial(m));
 *
 * The better the given second derivatives are, the fewer evaluations it takes. */
#ifndef SMALLWORLD_PROBE_MINIMISER_H
#define SMALLWORLD_PROBE_MINIMISER_H

#include <stdbool.h>
#include <stddef.h>

/* Small dense systems of equations, row-major. */

/* Replaces a symmetric matrix a [n][n] by its lower triangular factor r, a = r r'. Reads and writes
 * the lower triangle only. Returns false, with `a` overwritten, if a is not positive definite. */
bool cholesky_factor(double *a, size_t n);

/* Replaces x [n][columns] by r^-1 x. */
void cholesky_forward(const double *r, size_t n, double *x, size_t columns);

typedef struct minimiser minimiser;

/* The pairs of points that it remembers, and the copies of its variables that it holds. */
enum { HISTORY_PAIRS = 20, MINIMISER_COPIES = 2 * HISTORY_PAIRS + 6 };

/* start [blocks][each], copied. The loss's second derivatives in each block are about
 *
 *     share weight (diagonal + factor factor'),  diagonal [each] above 0, factor [each][rank],
 *
 * with a share in (0, 1] that minimiser_tell gives, since a loss flattens on its way down. Both
 * arrays must outlive the minimiser. */
minimiser *minimiser_create(size_t each, size_t blocks, const double *start, const double *diagonal,
                            const double *factor, int rank, double weight);
void minimiser_free(minimiser *m);

/* Returns the point [blocks][each] at which to evaluate the loss next. It is valid until the next
 * minimiser_tell. */
const double *minimiser_trial(const minimiser *m);

/* Takes the loss at the trial point and its gradient [blocks][each], both without the penalty, and
 * the share at that point. */
void minimiser_tell(minimiser *m, double loss, const double *gradient, double share);

/* Returns the best point so far, [blocks][each], and the loss plus penalty there. */
const double *minimiser_best(const minimiser *m);
double minimiser_objective(const minimiser *m);

/* Whether progress has ended: no step descends, or the last fifteen evaluations lowered the
 * objective by less than 1e-7 of itself. */
bool minimiser_stalled(const minimiser *m);

#endif
