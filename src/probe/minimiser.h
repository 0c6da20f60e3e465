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

/* Replaces x [n][columns] by r^-1 x, or by r'^-1 x. */
void cholesky_forward(const double *r, size_t n, double *x, size_t columns);
void cholesky_backward(const double *r, size_t n, double *x, size_t columns);

/* The memory of L-BFGS: the differences s of the latest points and y of the gradients there, and
 * the quadratic model that follows from them. Its matrix of second derivatives, B, comes from
 * B0 = scale (diagonal + weight F F'), F of few columns, scale such that B0 suits the latest
 * pair. */

typedef struct history history;

enum { HISTORY_PAIRS = 20 };

/* Makes an empty history with diagonal 1 and weight 0, of `blocks` neighbouring parts of `each`
 * variables, which share diagonal and F. factor [each][rank], F, must outlive it. */
history *history_create(size_t each, size_t blocks, const double *factor, int rank);
void history_free(history *h);

/* diagonal [each], above 0, is copied; weight above 0. */
void history_set_base(history *h, const double *diagonal, double weight);

/* Adds the pair (to - from, new_gradient - old_gradient), replacing the oldest pair if the history
 * is full. Ignores a pair without positive curvature, which rounding causes. */
void history_add(history *h, const double *from, const double *to, const double *old_gradient,
                 const double *new_gradient);
void history_forget(history *h);
bool history_is_empty(const history *h);

/* target [each x blocks] = the minimum over u of gradient . (u - w) + (u - w)' B (u - w) / 2. */
void history_newton(const history *h, const double *w, const double *gradient, double *target);

typedef struct minimiser minimiser;

enum { MINIMISER_COPIES = 2 * HISTORY_PAIRS + 6 }; /* of its variables, that it holds */

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
