#include "probe/view.h"

#include "core/memory.h"

#include <stdlib.h>

view view_create(const dataset *d, const int8_t *sign, bool standardize) {
    view v = {.standardize = standardize, .units = d->units};
    v.mean = mem_alloc(d->units, sizeof *v.mean);
    v.deviation = mem_alloc(d->units, sizeof *v.deviation);
    for (size_t i = 0; i < d->rows; i++) v.rows += sign[i] != 0;
    dataset_moments(d, sign, v.mean, v.deviation);
    return v;
}

void view_free(view *v) {
    free(v->mean);
    free(v->deviation);
}

static double center(const view *v, size_t unit) {
    return v->standardize ? v->mean[unit] : 0;
}

double view_scale(const view *v, size_t unit) {
    return v->standardize && v->deviation[unit] > 0 ? v->deviation[unit] : 1;
}

void view_leave(const view *v, const double *seen, double *weights) {
    weights[v->units] = seen[v->units];
    for (size_t u = 0; u < v->units; u++) {
        weights[u] = (float)(seen[u] / view_scale(v, u));
        weights[v->units] -= center(v, u) * weights[u];
    }
}

void view_enter(const view *v, const double *weights, double *seen) {
    seen[v->units] = weights[v->units];
    for (size_t u = 0; u < v->units; u++) {
        seen[u] = weights[u] * view_scale(v, u);
        seen[v->units] += center(v, u) * weights[u];
    }
}

void view_gradient(const view *v, double *gradient) {
    for (size_t u = 0; u < v->units; u++) {
        bool constant = v->standardize && v->deviation[u] == 0; /* exactly 0, not nearly 0 */
        double centered = gradient[u] - center(v, u) * gradient[v->units];
        gradient[u] = constant ? 0 : centered / view_scale(v, u);
    }
}
