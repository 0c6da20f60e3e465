#include "probe/curvature.h"

#include "core/memory.h"
#include "core/philox.h"
#include "probe/minimiser.h"

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

static double deviation(const moments *m, size_t u) {
    return m->deviation[u] > 0 ? m->deviation[u] : 1;
}

/* moved [rank][units] = directions times the moments of standardised features, and 0 outside the
 * span. */
static bool multiply_by_moments(logistic *l, size_t units, const int16_t *class, const moments *m,
                                feature_span span, const double *directions, int rank,
                                double *moved, error *err) {
    size_t count = units + 1, group = (size_t)logistic_columns(l);
    double *w = mem_alloc(2 * group * count, sizeof *w), *product = w + group * count;
    bool done = true;
    for (size_t from = 0; from < (size_t)rank && done; from += group) {
        size_t here = (size_t)rank - from < group ? (size_t)rank - from : group;
        for (size_t k = 0; k < here; k++) {
            double *to = w + k * count;
            to[units] = 0;
            for (size_t u = 0; u < units; u++) {
                to[u] = (float)(directions[(from + k) * units + u] / deviation(m, u));
                to[units] -= m->mean[u] * to[u];
            }
        }
        done = logistic_moments(l, w, (int)here, class, product, err);
        for (size_t k = 0; k < here; k++) {
            const double *g = product + k * count;
            for (size_t u = span.first; u < span.end; u++) {
                moved[(from + k) * units + u] = (g[u] - m->mean[u] * g[units]) / deviation(m, u);
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

/* Converts the factor from standardised features to those as they are: the mean is one more
 * direction, shared with the intercept. */
static void assemble(curvature *c, size_t units, const double *moved, int rank, const moments *m,
                     feature_span span) {
    c->count = units + 1;
    c->rank = rank + 1;
    c->diagonal = mem_alloc(c->count, sizeof *c->diagonal);
    c->factor = mem_alloc(c->count * (size_t)c->rank, sizeof *c->factor);
    for (size_t u = 0; u < units; u++) {
        const bool inside = u >= span.first && u < span.end;
        const double size = m->deviation[u], mean = inside ? m->mean[u] : 0;
        double *row = c->factor + u * (size_t)c->rank, residual = m->rows;
        for (size_t k = 0; k < (size_t)rank; k++) {
            double f = moved[k * units + u];
            residual -= f * f;
            row[k] = size * f;
        }
        row[rank] = sqrt(m->rows) * mean;
        residual = fmax(residual, least_residual * m->rows) * size * size;
        c->diagonal[u] = fmax(residual, least_residual * least_residual * m->rows * mean * mean);
        /* A feature that is always 0 can have any diagonal. */
        if (!(c->diagonal[u] > 0)) c->diagonal[u] = m->rows;
    }
    c->diagonal[units] = least_residual * m->rows;
    c->factor[units * (size_t)c->rank + (size_t)rank] = sqrt(m->rows);
}

bool curvature_find(curvature *c, logistic *l, const int16_t *class, const moments *m,
                    feature_span span, error *err) {
    const size_t width = span.end - span.first, units = logistic_units(l);
    int rank = width < DIRECTIONS ? (int)width : DIRECTIONS;
    double *directions = random_directions(units, span, rank);
    double *moved = mem_alloc((size_t)rank * units, sizeof *moved);
    bool found = multiply_by_moments(l, units, class, m, span, directions, rank, moved, err);
    if (found) {
        factorise(directions, moved, units, rank, m->rows * (double)width);
        assemble(c, units, moved, rank, m, span);
    }
    free(moved);
    free(directions);
    return found;
}

void curvature_free(curvature *c) {
    free(c->diagonal);
    free(c->factor);
}
