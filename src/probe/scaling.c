#include "probe/scaling.h"

#include "core/memory.h"

#include <stdlib.h>

scaling scaling_create(const dataset *d, const int8_t *sign, bool standardize) {
    scaling v = {.standardize = standardize, .units = d->units};
    v.mean = mem_alloc(d->units, sizeof *v.mean);
    v.deviation = mem_alloc(d->units, sizeof *v.deviation);
    for (size_t i = 0; i < d->rows; i++) v.rows += sign[i] != 0;
    dataset_moments(d, sign, v.mean, v.deviation);
    return v;
}

void scaling_free(scaling *v) {
    free(v->mean);
    free(v->deviation);
}

static double center(const scaling *v, size_t unit) {
    return v->standardize ? v->mean[unit] : 0;
}

double scaling_scale(const scaling *v, size_t unit) {
    return v->standardize && v->deviation[unit] > 0 ? v->deviation[unit] : 1;
}

void scaling_leave(const scaling *v, const double *seen, double *weights) {
    weights[v->units] = seen[v->units];
    for (size_t u = 0; u < v->units; u++) {
        weights[u] = (float)(seen[u] / scaling_scale(v, u));
        weights[v->units] -= center(v, u) * weights[u];
    }
}

void scaling_enter(const scaling *v, const double *weights, double *seen) {
    seen[v->units] = weights[v->units];
    for (size_t u = 0; u < v->units; u++) {
        seen[u] = weights[u] * scaling_scale(v, u);
        seen[v->units] += center(v, u) * weights[u];
    }
}

void scaling_gradient(const scaling *v, double *gradient) {
    for (size_t u = 0; u < v->units; u++) {
        bool constant = v->standardize && v->deviation[u] == 0; /* exactly 0, not nearly 0 */
        double centered = gradient[u] - center(v, u) * gradient[v->units];
        gradient[u] = constant ? 0 : centered / scaling_scale(v, u);
    }
}
