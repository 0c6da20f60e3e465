/* What L-BFGS remembers of a function: differences s of the latest points and y of the gradients
 * there, and the quadratic model that follows from them. Its matrix of second derivatives is
 *
 *     B = B0 - W M^-1 W',   W = [B0 S, Y],   M = [ S' B0 S   L ]
 *                                                [ L'       -D ]
 *
 * with B0 a diagonal times a scale, S'Y = L + D + R, L strictly lower and D diagonal (Byrd,
 * Nocedal, Schnabel, "Representations of quasi-Newton matrices", 1994). */
#ifndef SMALLWORLD_PROBE_HISTORY_H
#define SMALLWORLD_PROBE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct history history;

/* An empty one, B0 the identity. */
history *history_create(size_t count);
void history_free(history *h);

/* Adds the pair (to - from, new_gradient - old_gradient), in place of the oldest one where there is
 * no room; passes over one without positive curvature, which is rounding. */
void history_add(history *h, const double *from, const double *to, const double *old_gradient,
                 const double *new_gradient);
void history_forget(history *h);

/* B0 is `diagonal`, [count], above 0, times a scale that the latest pair gives. */
void history_set_diagonal(history *h, const double *diagonal);
bool history_is_empty(const history *h);

/* target [count] = the minimum of gradient . (u - w) + (u - w)' B (u - w) / 2. */
void history_newton(const history *h, const double *w, const double *gradient, double *target);

/* The same plus |u|_1, by coordinate descent over the weights that are not 0, or whose gradient
 * would make them so; not to the last digit. */
void history_newton_l1(const history *h, const double *w, const double *gradient, double *target);

#endif
