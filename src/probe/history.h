/* The memory of L-BFGS: the differences s of the latest points and y of the gradients there, and
 * the quadratic model that follows from them. Its matrix of second derivatives, B, comes from
 * B0 = scale (diagonal + weight F F'), F of few columns, scale such that B0 suits the latest
 * pair. */
#ifndef SMALLWORLD_PROBE_HISTORY_H
#define SMALLWORLD_PROBE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

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

#endif
