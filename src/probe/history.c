#include "probe/history.h"

#include "core/memory.h"
#include "probe/cholesky.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct history {
    size_t count, each;       /* all variables, and those of a block */
    double *diagonal, weight; /* of B0 */
    const double *factor;     /* [each][rank] */
    int rank;
    double *root; /* [rank][rank], of I / weight + F' diagonal^-1 F: see solve_base */
    double *s[HISTORY_PAIRS], *y[HISTORY_PAIRS]; /* from the oldest on */
    double sy[HISTORY_PAIRS][HISTORY_PAIRS];     /* S' Y */
    double scale;
    int pairs;
    double *scratch; /* [count + rank] */
};

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* ----------------------------------------------------------------------------------------- base */

/* x [rank] = F' v. */
static void multiply_factor(const history *h, const double *v, double *x) {
    size_t rank = (size_t)h->rank;
    for (size_t k = 0; k < rank; k++) x[k] = 0;
    for (size_t i = 0; i < h->each; i++) {
        if (v[i] == 0) continue;
        for (size_t k = 0; k < rank; k++) x[k] += v[i] * h->factor[i * rank + k];
    }
}

/* A block v becomes B0^-1 v, by Woodbury's identity:
 *     (D + weight F F')^-1 = D^-1 - D^-1 F (I / weight + F' D^-1 F)^-1 F' D^-1. */
static void solve_block(const history *h, double *v) {
    double *x = h->scratch + h->count;
    size_t rank = (size_t)h->rank;
    for (size_t i = 0; i < h->each; i++) v[i] /= h->diagonal[i];
    if (h->weight > 0) {
        multiply_factor(h, v, x);
        cholesky_forward(h->root, rank, x, 1);
        cholesky_backward(h->root, rank, x, 1);
        for (size_t i = 0; i < h->each; i++) {
            v[i] -= dot(h->factor + i * rank, x, rank) / h->diagonal[i];
        }
    }
    for (size_t i = 0; i < h->each; i++) v[i] /= h->scale;
}

static void solve_base(const history *h, double *v) {
    for (size_t at = 0; at < h->count; at += h->each) solve_block(h, v + at);
}

static void find_root(history *h) {
    size_t rank = (size_t)h->rank;
    memset(h->root, 0, rank * rank * sizeof *h->root);
    for (size_t i = 0; i < h->each; i++) {
        const double *row = h->factor + i * rank;
        for (size_t r = 0; r < rank; r++) {
            double left = row[r] / h->diagonal[i];
            for (size_t c = 0; c <= r; c++) h->root[r * rank + c] += left * row[c];
        }
    }
    for (size_t r = 0; r < rank; r++) h->root[r * rank + r] += 1 / h->weight;
    /* If rounding made it indefinite, the diagonal is used alone. */
    if (!cholesky_factor(h->root, rank)) h->weight = 0;
}

/* Scales B0 so that it agrees with the latest pair: y' B0^-1 y = s' y. */
static void find_scale(history *h) {
    h->scale = 1;
    if (h->pairs == 0) return;
    int last = h->pairs - 1;
    memcpy(h->scratch, h->y[last], h->count * sizeof *h->scratch);
    solve_base(h, h->scratch);
    h->scale = dot(h->scratch, h->y[last], h->count) / h->sy[last][last];
}

void history_set_base(history *h, const double *diagonal, double weight) {
    memcpy(h->diagonal, diagonal, h->each * sizeof *diagonal);
    h->weight = weight;
    find_root(h);
    find_scale(h);
}

/* ---------------------------------------------------------------------------------------- pairs */

history *history_create(size_t each, size_t blocks, const double *factor, int rank) {
    history *h = mem_alloc(1, sizeof *h);
    const size_t count = each * blocks;
    *h = (history){.count = count, .each = each, .factor = factor, .rank = rank, .scale = 1};
    h->diagonal = mem_alloc(each, sizeof *h->diagonal);
    h->scratch = mem_alloc(count + (size_t)rank, sizeof *h->scratch);
    h->root = mem_alloc((size_t)rank * (size_t)rank, sizeof *h->root);
    for (size_t i = 0; i < each; i++) h->diagonal[i] = 1;
    for (int k = 0; k < HISTORY_PAIRS; k++) {
        h->s[k] = mem_alloc(count, sizeof(double));
        h->y[k] = mem_alloc(count, sizeof(double));
    }
    return h;
}

void history_free(history *h) {
    if (!h) return;
    for (int k = 0; k < HISTORY_PAIRS; k++) {
        free(h->s[k]);
        free(h->y[k]);
    }
    free(h->root);
    free(h->scratch);
    free(h->diagonal);
    free(h);
}

static void drop_oldest(history *h) {
    double *s = h->s[0], *y = h->y[0];
    for (int i = 0; i + 1 < HISTORY_PAIRS; i++) {
        h->s[i] = h->s[i + 1];
        h->y[i] = h->y[i + 1];
        for (int j = 0; j + 1 < HISTORY_PAIRS; j++) {
            h->sy[i][j] = h->sy[i + 1][j + 1];
        }
    }
    h->s[HISTORY_PAIRS - 1] = s;
    h->y[HISTORY_PAIRS - 1] = y;
    h->pairs--;
}

void history_add(history *h, const double *from, const double *to, const double *old_gradient,
                 const double *new_gradient) {
    double curvature = 0;
    for (size_t i = 0; i < h->count; i++) {
        curvature += (to[i] - from[i]) * (new_gradient[i] - old_gradient[i]);
    }
    if (!(curvature > 0)) return;
    if (h->pairs == HISTORY_PAIRS) drop_oldest(h);
    int n = h->pairs++;
    double *s = h->s[n], *y = h->y[n];
    for (size_t i = 0; i < h->count; i++) {
        s[i] = to[i] - from[i];
        y[i] = new_gradient[i] - old_gradient[i];
    }
    for (int k = 0; k <= n; k++) {
        h->sy[k][n] = dot(h->s[k], y, h->count);
        h->sy[n][k] = dot(s, h->y[k], h->count);
    }
    find_scale(h);
}

void history_forget(history *h) {
    h->pairs = 0;
    find_scale(h);
}

bool history_is_empty(const history *h) {
    return h->pairs == 0;
}

/* ---------------------------------------------------------------------------------------- steps */

/* Uses L-BFGS's two loops. */
void history_newton(const history *h, const double *w, const double *gradient, double *target) {
    double alpha[HISTORY_PAIRS];
    for (size_t i = 0; i < h->count; i++) target[i] = -gradient[i];
    for (int k = h->pairs - 1; k >= 0; k--) {
        alpha[k] = dot(h->s[k], target, h->count) / h->sy[k][k];
        for (size_t i = 0; i < h->count; i++) target[i] -= alpha[k] * h->y[k][i];
    }
    solve_base(h, target);
    for (int k = 0; k < h->pairs; k++) {
        double beta = alpha[k] - dot(h->y[k], target, h->count) / h->sy[k][k];
        for (size_t i = 0; i < h->count; i++) target[i] += beta * h->s[k][i];
    }
    for (size_t i = 0; i < h->count; i++) target[i] += w[i];
}
