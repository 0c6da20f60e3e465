#include "probe/history.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAIRS = 20,
    MAX_SWEEPS = 500, /* of coordinate descent, and how many coordinates they may visit in all */
    MAX_VISITS = 1 << 20
};

static const double sweep_tolerance = 1e-6; /* on a sweep's share of the model's decrease */

struct history {
    size_t count;
    double *diagonal;
    double *s[PAIRS], *y[PAIRS]; /* from the oldest on */
    double sds[PAIRS][PAIRS];    /* S' diagonal S */
    double sy[PAIRS][PAIRS];     /* S' Y */
    double scale;                /* B0 = scale diagonal */
    int pairs;
};

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* ---------------------------------------------------------------------------------------- pairs */

history *history_create(size_t count) {
    history *h = mem_alloc(1, sizeof *h);
    *h = (history){.count = count, .scale = 1, .diagonal = mem_alloc(count, sizeof(double))};
    for (size_t i = 0; i < count; i++) h->diagonal[i] = 1;
    for (int k = 0; k < PAIRS; k++) {
        h->s[k] = mem_alloc(count, sizeof(double));
        h->y[k] = mem_alloc(count, sizeof(double));
    }
    return h;
}

void history_free(history *h) {
    if (!h) return;
    for (int k = 0; k < PAIRS; k++) {
        free(h->s[k]);
        free(h->y[k]);
    }
    free(h->diagonal);
    free(h);
}

static void drop_oldest(history *h) {
    double *s = h->s[0], *y = h->y[0];
    for (int i = 0; i + 1 < PAIRS; i++) {
        h->s[i] = h->s[i + 1];
        h->y[i] = h->y[i + 1];
        for (int j = 0; j + 1 < PAIRS; j++) {
            h->sds[i][j] = h->sds[i + 1][j + 1];
            h->sy[i][j] = h->sy[i + 1][j + 1];
        }
    }
    h->s[PAIRS - 1] = s;
    h->y[PAIRS - 1] = y;
    h->pairs--;
}

static double scaled_dot(const history *h, const double *a, const double *b) {
    double sum = 0;
    for (size_t i = 0; i < h->count; i++) sum += a[i] * h->diagonal[i] * b[i];
    return sum;
}

static void find_scale(history *h) {
    h->scale = 1;
    if (h->pairs == 0) return;
    const double *y = h->y[h->pairs - 1];
    double sum = 0;
    for (size_t i = 0; i < h->count; i++) sum += y[i] * y[i] / h->diagonal[i];
    h->scale = sum / h->sy[h->pairs - 1][h->pairs - 1];
}

void history_add(history *h, const double *from, const double *to, const double *old_gradient,
                 const double *new_gradient) {
    double curvature = 0;
    for (size_t i = 0; i < h->count; i++) {
        curvature += (to[i] - from[i]) * (new_gradient[i] - old_gradient[i]);
    }
    if (!(curvature > 0)) return;
    if (h->pairs == PAIRS) drop_oldest(h);
    int n = h->pairs++;
    double *s = h->s[n], *y = h->y[n];
    for (size_t i = 0; i < h->count; i++) {
        s[i] = to[i] - from[i];
        y[i] = new_gradient[i] - old_gradient[i];
    }
    for (int k = 0; k <= n; k++) {
        h->sds[k][n] = h->sds[n][k] = scaled_dot(h, h->s[k], s);
        h->sy[k][n] = dot(h->s[k], y, h->count);
        h->sy[n][k] = dot(s, h->y[k], h->count);
    }
    find_scale(h);
}

void history_set_diagonal(history *h, const double *diagonal) {
    memcpy(h->diagonal, diagonal, h->count * sizeof *diagonal);
    for (int i = 0; i < h->pairs; i++) {
        for (int j = 0; j <= i; j++) {
            h->sds[i][j] = h->sds[j][i] = scaled_dot(h, h->s[i], h->s[j]);
        }
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

/* ----------------------------------------------------------------------------- without a penalty
 */

/* By L-BFGS's two loops. */
void history_newton(const history *h, const double *w, const double *gradient, double *target) {
    double alpha[PAIRS];
    for (size_t i = 0; i < h->count; i++) target[i] = -gradient[i];
    for (int k = h->pairs - 1; k >= 0; k--) {
        alpha[k] = dot(h->s[k], target, h->count) / h->sy[k][k];
        for (size_t i = 0; i < h->count; i++) target[i] -= alpha[k] * h->y[k][i];
    }
    for (size_t i = 0; i < h->count; i++) target[i] /= h->scale * h->diagonal[i];
    for (int k = 0; k < h->pairs; k++) {
        double beta = alpha[k] - dot(h->y[k], target, h->count) / h->sy[k][k];
        for (size_t i = 0; i < h->count; i++) target[i] += beta * h->s[k][i];
    }
    for (size_t i = 0; i < h->count; i++) target[i] += w[i];
}

/* ----------------------------------------------------------------------------------- with |u|_1 */

/* In place, by elimination with partial pivoting: x = a^-1 x for `columns` columns of x. */
static void solve(int n, double a[][2 * PAIRS], double *x, size_t columns) {
    for (int i = 0; i < n; i++) {
        int pivot = i;
        for (int r = i + 1; r < n; r++) {
            if (fabs(a[r][i]) > fabs(a[pivot][i])) pivot = r;
        }
        for (int c = 0; c < n && pivot != i; c++) {
            double swapped = a[i][c];
            a[i][c] = a[pivot][c];
            a[pivot][c] = swapped;
        }
        for (size_t c = 0; c < columns && pivot != i; c++) {
            double swapped = x[(size_t)i * columns + c];
            x[(size_t)i * columns + c] = x[(size_t)pivot * columns + c];
            x[(size_t)pivot * columns + c] = swapped;
        }
        for (int r = i + 1; r < n; r++) {
            double factor = a[r][i] / a[i][i];
            for (int c = i; c < n; c++) a[r][c] -= factor * a[i][c];
            for (size_t c = 0; c < columns; c++) {
                x[(size_t)r * columns + c] -= factor * x[(size_t)i * columns + c];
            }
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        for (size_t c = 0; c < columns; c++) {
            double sum = x[(size_t)i * columns + c];
            for (int r = i + 1; r < n; r++) sum -= a[i][r] * x[(size_t)r * columns + c];
            x[(size_t)i * columns + c] = sum / a[i][i];
        }
    }
}

/* The model over the coordinates that may move. */
typedef struct l1_model {
    size_t count;
    int rank;
    size_t *index;            /* [count] which coordinates */
    double *base, *curvature; /* [count] of B0 and of B, their diagonals */
    double *left, *right;     /* [count][rank] W, and W M^-1 */
} l1_model;

static l1_model build_model(const history *h, const double *w, const double *gradient) {
    int n = h->pairs;
    l1_model m = {.rank = 2 * n, .index = mem_alloc(h->count, sizeof(size_t))};
    for (size_t i = 0; i < h->count; i++) {
        if (w[i] != 0 || fabs(gradient[i]) > 1) m.index[m.count++] = i;
    }
    size_t rank = (size_t)m.rank;
    m.base = mem_alloc(2 * m.count + 1, sizeof *m.base);
    m.curvature = m.base + m.count;
    m.left = mem_alloc(2 * m.count * rank + 1, sizeof *m.left);
    m.right = m.left + m.count * rank;
    double middle[2 * PAIRS][2 * PAIRS] = {0}, inverse[2 * PAIRS * 2 * PAIRS] = {0};
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            middle[i][j] = h->scale * h->sds[i][j];
            if (i > j) middle[i][n + j] = middle[n + j][i] = h->sy[i][j];
        }
        middle[n + i][n + i] = -h->sy[i][i];
        inverse[(size_t)i * rank + (size_t)i] = 1;
        inverse[(size_t)(n + i) * rank + (size_t)(n + i)] = 1;
    }
    solve(m.rank, middle, inverse, rank);
    for (size_t a = 0; a < m.count; a++) {
        size_t i = m.index[a];
        double *left = m.left + a * rank, *right = m.right + a * rank;
        m.base[a] = h->scale * h->diagonal[i];
        for (int k = 0; k < n; k++) {
            left[k] = m.base[a] * h->s[k][i];
            left[n + k] = h->y[k][i];
        }
        for (size_t c = 0; c < rank; c++) {
            for (size_t r = 0; r < rank; r++) right[c] += inverse[r * rank + c] * left[r];
        }
        m.curvature[a] = m.base[a] - dot(left, right, rank);
        if (!(m.curvature[a] > 1e-6 * m.base[a])) m.curvature[a] = 1e-6 * m.base[a];
    }
    return m;
}

/* One pass over the coordinates; `product` [rank] is right' (u - w). Returns twice the decrease,
 * about. */
static double sweep(const l1_model *m, const double *w, const double *gradient, double *target,
                    double *product) {
    size_t rank = (size_t)m->rank;
    double moved = 0;
    for (size_t a = 0; a < m->count; a++) {
        size_t i = m->index[a];
        double slope =
            gradient[i] + m->base[a] * (target[i] - w[i]) - dot(m->left + a * rank, product, rank);
        double free = target[i] - slope / m->curvature[a], shrink = 1 / m->curvature[a];
        double to = free > shrink ? free - shrink : free < -shrink ? free + shrink : 0;
        double step = to - target[i];
        if (step == 0) continue;
        target[i] = to;
        moved += step * step * m->curvature[a];
        for (size_t c = 0; c < rank; c++) product[c] += step * m->right[a * rank + c];
    }
    return moved;
}

void history_newton_l1(const history *h, const double *w, const double *gradient, double *target) {
    l1_model m = build_model(h, w, gradient);
    double product[2 * PAIRS] = {0}, total = 0;
    memcpy(target, w, h->count * sizeof *w);
    size_t visits = 0;
    for (int n = 0; n < MAX_SWEEPS && visits < MAX_VISITS; n++, visits += m.count) {
        double moved = sweep(&m, w, gradient, target, product);
        total += moved;
        if (moved <= sweep_tolerance * total) break;
    }
    free(m.left);
    free(m.base);
    free(m.index);
}
