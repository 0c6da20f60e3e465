/* An upper bound of a logistic loss's curvature: the second moments of features and of the
 * intercept's constant feature, approximated by a diagonal plus a few directions,
 *
 *     sum over i of x_i x_i'  ~  diag(diagonal) + factor factor'.
 *
 * The directions come from one product of the moments with random ones (Frangella, Tropp, Udell,
 * "Randomized Nystrom preconditioning", 2021). Units of a recurrent net are near collinear, with
 * means far from 0, so a fit takes a tenth of the steps that it takes with a diagonal alone. */
#ifndef SMALLWORLD_PROBE_CURVATURE_H
#define SMALLWORLD_PROBE_CURVATURE_H

#include "probe/logistic.h"

typedef struct curvature {
    size_t count; /* units + 1 */
    int rank;
    double *diagonal; /* [count], above 0 */
    double *factor;   /* [count][rank] */
} curvature;

/* Features from `first` to `end` - 1. */
typedef struct feature_span {
    size_t first, end;
} feature_span;

/* Finds the curvature of a span's features over the rows whose class is not -1. `m` is of the same
 * dataset and rows as `l`. */
bool curvature_find(curvature *c, logistic *l, const int16_t *class, const moments *m,
                    feature_span span, error *err);
void curvature_free(curvature *c);

#endif
