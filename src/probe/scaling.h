/* How a fit sees features: as they are, or standardised by mean and deviation over the fitted
 * rows. Standardised features are never stored; weights and gradients are converted instead. */
#ifndef SMALLWORLD_PROBE_SCALING_H
#define SMALLWORLD_PROBE_SCALING_H

#include "probe/dataset.h"

typedef struct scaling {
    bool standardize; /* x becomes (x - mean) / deviation; a constant feature becomes 0 */
    size_t units;
    double rows;              /* number of fitted rows */
    double *mean, *deviation; /* [units] of the features as they are */
} scaling;

/* Finds it by the rows whose sign is not 0. */
scaling scaling_create(const dataset *d, const int8_t *sign, bool standardize);
void scaling_free(scaling *v);

/* Convert models [units + 1], with the intercept last, between scaled features and features as
 * they are. scaling_leave rounds weights to float. */
void scaling_leave(const scaling *v, const double *seen, double *weights);
void scaling_enter(const scaling *v, const double *weights, double *seen);

/* Converts a gradient [units + 1] from the weights of unscaled features to those of scaled ones. */
void scaling_gradient(const scaling *v, double *gradient);

/* The number that the scaling divides a unit by. */
double scaling_scale(const scaling *v, size_t unit);

#endif
