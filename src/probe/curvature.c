#include "probe/curvature.h"

#include "core/memory.h"
#include "core/philox.h"
#include "probe/cholesky.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIRECTIONS = 64 };

/* At least this share of a unit's second moment stays in the diagonal. */
static const double least_residual = 1e-4;

/* Returns orthonormal rows [rank][units], 0 outside the span, made by Gram-Schmidt. */
static double *random_directions(size_t units, feature_span span, int rank) {
    double *q = mem_alloc((size_t)rank * units, sizeof *q);
    philox_stream draws = philox_start(0, PHILOX_PROBE, 0, 0);
    for (size_t k = 0; k < (size_t)rank; k++) {
        for (size_t u = span.first; u < span.end; u++) {
            q[k * units + u] = philox_uniform(&draws) - 0.5;
        }
    }
    for (size_t k = 0; k < (size_t)rank; k++) {
        double *row = q + k * units, norm = 0;
        for (size_t j = 0; j < k; j++) {
            double *other = q + j * units, along = 0;
            for (size_t u = 0; u < units; u++) along += row[u] * other[u];
            for (size_t u = 0; u < units; u++) row[u] -= along * other[u];
        }
        for (size_t u = 0; u < units; u++) norm += row[u] * row[u];
        for (size_t u = 0; u < units; u++) row[u] /= sqrt(norm);
    }
    return q;
}

static double deviation(const scaling *v, size_t u) {
    return v->deviation[u] > 0 ? v->deviation[u] : 1;
}

/* moved [rank][units] = directions times the moments of standardised features, scaled or not, and
 * 0 outside the span. */
static bool multiply_by_moments(logistic *l, const int8_t *sign, const scaling *v,
                                feature_span span, const double *directions, int rank,
                                double *moved, error *err) {
    size_t units = v->units, count = units + 1, group = (size_t)logistic_columns(l);
    double *w = mem_alloc(2 * group * count, sizeof *w), *product = w + group * count;
    bool done = true;
    for (size_t from = 0; from < (size_t)rank && done; from += group) {
        size_t here = (size_t)rank - from < group ? (size_t)rank - from : group;
        for (size_t k = 0; k < here; k++) {
            double *to = w + k * count;
            to[units] = 0;
            for (size_t u = 0; u < units; u++) {
                to[u] = (float)(directions[(from + k) * units + u] / deviation(v, u));
                to[units] -= v->mean[u] * to[u];
            }
        }
        done = logistic_moments(l, w, (int)here, sign, product, err);
        for (size_t k = 0; k < here; k++) {
            const double *g = product + k * count;
            for (size_t u = span.first; u < span.end; u++) {
                moved[(from + k) * units + u] = (g[u] - v->mean[u] * g[units]) / deviation(v, u);
            }
        }
    }
    free(w);
    return done;
}

/* Nystrom: with Q the directions and Y = K Q, K ~ Y (Q'Y)^-1 Y' = F F', F' = chol(Q'Y)^-1 Y'. In
 * place, moved becomes F'. A shift keeps rounding from making Q'Y indefinite; where none does (sums
 * that overflow), F is 0. */
static void factorise(const double *q, double *moved, size_t units, int rank, double trace) {
    size_t n = (size_t)rank;
    double *core = mem_alloc(2 * n * n, sizeof *core), *root = core + n * n;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t u = 0; u < units; u++) sum += q[i * units + u] * moved[j * units + u];
            core[i * n + j] = sum;
        }
    }
    double shift = 1e-7 * trace;
    bool rooted = false;
    for (int attempt = 0; attempt < 6 && !rooted; attempt++) {
        shift *= 10;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j <= i; j++) {
                root[i * n + j] = (core[i * n + j] + core[j * n + i]) / 2 + (i == j ? shift : 0);
            }
        }
        rooted = cholesky_factor(root, n);
    }
    for (size_t i = 0; i < n * units; i++) moved[i] = rooted ? moved[i] + shift * q[i] : 0;
    if (rooted) cholesky_forward(root, n, moved, units);
    free(core);
}

/* Converts the factor from standardised features to scaled ones. If these are not standardised,
 * the mean is one more direction, shared with the intercept. */
static void assemble(curvature *c, const double *moved, int rank, const scaling *v,
                     feature_span span) {
    size_t units = v->units;
    c->count = units + 1;
    c->rank = rank + !v->standardize;
    c->diagonal = mem_alloc(c->count, sizeof *c->diagonal);
    c->factor = mem_alloc(c->count * (size_t)c->rank, sizeof *c->factor);
    for (size_t u = 0; u < units; u++) {
        double size = v->deviation[u] / scaling_scale(v, u), mean = v->standardize ? 0 : v->mean[u];
        if (u < span.first || u >= span.end) mean = 0; /* no part of the shared direction */
        double *row = c->factor + u * (size_t)c->rank, residual = v->rows;
        for (size_t k = 0; k < (size_t)rank; k++) {
            double f = moved[k * units + u];
            residual -= f * f;
            row[k] = size * f;
        }
        if (!v->standardize) row[rank] = sqrt(v->rows) * mean;
        residual = fmax(residual, least_residual * v->rows) * size * size;
        c->diagonal[u] = fmax(residual, least_residual * least_residual * v->rows * mean * mean);
        /* A feature that is always 0 can have any diagonal. */
        if (!(c->diagonal[u] > 0)) c->diagonal[u] = v->rows;
    }
    c->diagonal[units] = v->standardize ? v->rows : least_residual * v->rows;
    if (!v->standardize) c->factor[units * (size_t)c->rank + (size_t)rank] = sqrt(v->rows);
}

bool curvature_find(curvature *c, logistic *l, const int8_t *sign, const scaling *v,
                    feature_span span, error *err) {
    const size_t width = span.end - span.first;
    int rank = width < DIRECTIONS ? (int)width : DIRECTIONS;
    double *directions = random_directions(v->units, span, rank);
    double *moved = mem_alloc((size_t)rank * v->units, sizeof *moved);
    bool found = multiply_by_moments(l, sign, v, span, directions, rank, moved, err);
    if (found) {
        factorise(directions, moved, v->units, rank, v->rows * (double)width);
        assemble(c, moved, rank, v, span);
    }
    free(moved);
    free(directions);
    return found;
}

void curvature_free(curvature *c) {
    free(c->diagonal);
    free(c->factor);
}
