#include "probe/l1_model.h"

#include "core/memory.h"
#include "probe/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 8, SWEEPS = 2 }; /* each of SWEEPS sweeps and a Newton step */

static const double tolerance = 1e-9; /* smallest share of phi that a sweep must gain */

typedef struct search {
    const l1_model *m;
    double *u;
    double *curvature;    /* [count] B's diagonal */
    double *product;      /* [rank] right' (u - w) */
    size_t *free;         /* [count] the coordinates at which u is not 0 */
    double *slope, *kept; /* [count] scratch */
    double *small, *side; /* [rank][rank], [rank] scratch */
} search;

l1_model l1_model_create(size_t count, size_t rank) {
    l1_model m = {.count = count, .rank = rank};
    m.w = mem_alloc(count * (3 + 2 * rank) + 1, sizeof *m.w);
    m.gradient = m.w + count;
    m.base = m.gradient + count;
    m.left = m.base + count;
    m.right = m.left + count * rank;
    return m;
}

void l1_model_free(l1_model *m) {
    free(m->w);
}

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static void add(double *to, const double *from, double factor, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] += factor * from[i];
}

/* The slope of the model without its norm. */
static double slope_at(const search *s, size_t a) {
    const l1_model *m = s->m;
    return m->gradient[a] + m->base[a] * (s->u[a] - m->w[a]) -
           dot(m->left + a * m->rank, s->product, m->rank);
}

/* ------------------------------------------------------------------------------------- sweeps */

/* Minimises along each coordinate in turn; returns about twice the decrease. */
static double sweep(search *s) {
    const l1_model *m = s->m;
    double moved = 0;
    for (size_t a = 0; a < m->count; a++) {
        double shrink = 1 / s->curvature[a], best = s->u[a] - slope_at(s, a) * shrink;
        double to = best > shrink ? best - shrink : best < -shrink ? best + shrink : 0;
        double step = to - s->u[a];
        if (step == 0) continue;
        s->u[a] = to;
        moved += step * step * s->curvature[a];
        add(s->product, m->right + a * m->rank, step, m->rank);
    }
    return moved;
}

/* --------------------------------------------------------------------------------- Newton steps */

static void find_product(search *s) {
    const l1_model *m = s->m;
    memset(s->product, 0, m->rank * sizeof *s->product);
    for (size_t a = 0; a < m->count; a++) {
        add(s->product, m->right + a * m->rank, s->u[a] - m->w[a], m->rank);
    }
}

/* phi, with s->product up to date. */
static double value(const search *s) {
    const l1_model *m = s->m;
    double sum = 0;
    for (size_t a = 0; a < m->count; a++) {
        double step = s->u[a] - m->w[a];
        sum += fabs(s->u[a]) + step * 0.5 * (slope_at(s, a) + m->gradient[a]);
    }
    return sum;
}

/* slope [n] becomes the Newton step -B^-1 (slope + sign u) on the free coordinates, by Woodbury:
 *     (D - L R')^-1 = D^-1 + D^-1 L (I - R' D^-1 L)^-1 R' D^-1. */
static void newton_step(search *s, size_t n) {
    const l1_model *m = s->m;
    size_t rank = m->rank;
    memset(s->small, 0, rank * rank * sizeof *s->small);
    memset(s->side, 0, rank * sizeof *s->side);
    for (size_t r = 0; r < rank; r++) s->small[r * rank + r] = 1;
    for (size_t k = 0; k < n; k++) {
        size_t a = s->free[k];
        const double *left = m->left + a * rank, *right = m->right + a * rank;
        s->slope[k] = -(slope_at(s, a) + copysign(1, s->u[a])) / m->base[a];
        add(s->side, right, s->slope[k], rank);
        for (size_t r = 0; r < rank; r++) {
            add(s->small + r * rank, left, -right[r] / m->base[a], rank);
        }
    }
    linear_solve(s->small, rank, s->side, 1);
    for (size_t k = 0; k < n; k++) {
        size_t a = s->free[k];
        s->slope[k] += dot(m->left + a * rank, s->side, rank) / m->base[a];
    }
}

/* Moves the free coordinates by `share` of the step. A coordinate that would change its sign stops
 * at 0. */
static void take_step(search *s, size_t n, double share) {
    for (size_t k = 0; k < n; k++) {
        size_t a = s->free[k];
        double to = s->kept[k] + share * s->slope[k];
        s->u[a] = to * s->kept[k] > 0 ? to : 0;
    }
    find_product(s);
}

/* Takes the whole step if phi then decreases, or else the largest share of it that changes no sign.
 */
static void newton(search *s) {
    const l1_model *m = s->m;
    size_t n = 0;
    for (size_t a = 0; a < m->count; a++) {
        if (s->u[a] != 0) s->free[n++] = a;
    }
    if (n == 0 || m->rank == 0) return;
    find_product(s);
    double before = value(s), share = 1;
    for (size_t k = 0; k < n; k++) s->kept[k] = s->u[s->free[k]];
    newton_step(s, n);
    for (size_t k = 0; k < n; k++) {
        double crossing = -s->kept[k] / s->slope[k];
        if (crossing > 0 && crossing < share) share = crossing;
    }
    take_step(s, n, 1);
    if (value(s) < before) return;
    take_step(s, n, share);
    if (value(s) < before) return;
    take_step(s, n, 0);
}

void l1_model_minimise(const l1_model *m, double *u) {
    size_t rank = m->rank;
    search s = {.m = m, .u = u};
    s.curvature = mem_alloc(3 * m->count + rank * (rank + 2) + 1, sizeof *s.curvature);
    s.slope = s.curvature + m->count;
    s.kept = s.slope + m->count;
    s.product = s.kept + m->count;
    s.side = s.product + rank;
    s.small = s.side + rank;
    s.free = mem_alloc(m->count, sizeof *s.free);
    for (size_t a = 0; a < m->count; a++) {
        double curvature = m->base[a] - dot(m->left + a * rank, m->right + a * rank, rank);
        s.curvature[a] = fmax(curvature, 1e-6 * m->base[a]); /* positive except for rounding */
    }
    find_product(&s);
    double total = 0;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        double moved = 0;
        for (int k = 0; k < SWEEPS; k++) moved = sweep(&s);
        total += moved;
        if (moved <= tolerance * total) break;
        newton(&s);
    }
    free(s.free);
    free(s.curvature);
}
