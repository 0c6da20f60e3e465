/* A fit's view of features: as they are, or standardised by mean and deviation over the fitted
 * rows. Standardised features are never stored; weights and gradients are converted instead. */
#ifndef SMALLWORLD_PROBE_VIEW_H
#define SMALLWORLD_PROBE_VIEW_H

#include "probe/dataset.h"

typedef struct view {
    bool standardize; /* x becomes (x - mean) / deviation; a constant feature becomes 0 */
    size_t units;
    double rows;              /* number of fitted rows */
    double *mean, *deviation; /* [units] of the features as they are */
} view;

/* Makes the view of the rows whose sign is not 0. */
view view_create(const dataset *d, const int8_t *sign, bool standardize);
void view_free(view *v);

/* Convert models [units + 1], with the intercept last, between the view's features and the features
 * as they are. view_leave rounds weights to float. */
void view_leave(const view *v, const double *seen, double *weights);
void view_enter(const view *v, const double *weights, double *seen);

/* Converts a gradient [units + 1] from the features' weights to the view's. */
void view_gradient(const view *v, double *gradient);

/* The number that the view divides a unit by. */
double view_scale(const view *v, size_t unit);

#endif
