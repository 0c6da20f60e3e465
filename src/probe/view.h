/* A fit's view of features: as they are, or standardised by their mean and deviation over the rows
 * that are fitted. Standardised features are never stored; weights and gradients are converted. */
#ifndef SMALLWORLD_PROBE_VIEW_H
#define SMALLWORLD_PROBE_VIEW_H

#include "probe/dataset.h"

typedef struct view {
    bool standardize; /* x becomes (x - mean) / deviation; a constant feature becomes 0 */
    size_t units;
    double rows;              /* rows that count */
    double *mean, *deviation; /* [units] of the features as they are */
} view;

/* Of the rows whose sign is not 0. */
view view_create(const dataset *d, const int8_t *sign, bool standardize);
void view_free(view *v);

/* Converts models [units + 1], the intercept last, from the view's features to the features as they
 * are, with weights rounded to float, and back. */
void view_leave(const view *v, const double *seen, double *weights);
void view_enter(const view *v, const double *weights, double *seen);

/* Converts a gradient [units + 1] with respect to the features' weights to the view's. */
void view_gradient(const view *v, double *gradient);

/* What the view divides a unit by. */
double view_scale(const view *v, size_t unit);

#endif
