/* How a fit sees features: as they are, or standardised by their mean and deviation over the rows
 * it fits. What a standardised view shows is never stored: weights and gradients are translated. */
#ifndef SMALLWORLD_PROBE_VIEW_H
#define SMALLWORLD_PROBE_VIEW_H

#include "probe/dataset.h"

typedef struct view {
    bool standardize; /* x becomes (x - mean) / deviation; a constant feature becomes 0 */
    size_t units;
    double rows;              /* that count */
    double *mean, *deviation; /* [units] of the features as they are */
} view;

/* Of the rows whose sign is not 0. */
view view_create(const dataset *d, const int8_t *sign, bool standardize);
void view_free(view *v);

/* Models [units + 1], the intercept last: from one that applies to what the view shows to one for
 * the features as they are, its weights rounded to float, and back. */
void view_leave(const view *v, const double *seen, double *weights);
void view_enter(const view *v, const double *weights, double *seen);

/* A gradient [units + 1] at the features' weights becomes the one at the view's. */
void view_gradient(const view *v, double *gradient);

/* What the view divides a unit by. */
double view_scale(const view *v, size_t unit);

#endif
