#include "probe/minimiser.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ Cholesky */

/* to -= factor from */
static void subtract(double *to, const double *from, double factor, size_t count) {
    for (size_t c = 0; c < count; c++) to[c] -= factor * from[c];
}

static void divide(double *row, double by, size_t count) {
    for (size_t c = 0; c < count; c++) row[c] /= by;
}

bool cholesky_factor(double *a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (size_t k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            if (i == j && !(sum > 0)) return false;
            a[i * n + j] = i == j ? sqrt(sum) : sum / a[j * n + j];
        }
    }
    return true;
}

void cholesky_forward(const double *r, size_t n, double *x, size_t columns) {
    for (size_t i = 0; i < n; i++) {
        double *row = x + i * columns;
        for (size_t k = 0; k < i; k++) subtract(row, x + k * columns, r[i * n + k], columns);
        divide(row, r[i * n + i], columns);
    }
}

/* Replaces x [n][columns] by r'^-1 x. */
static void cholesky_backward(const double *r, size_t n, double *x, size_t columns) {
    for (size_t i = n; i-- > 0;) {
        double *row = x + i * columns;
        for (size_t k = i + 1; k < n; k++) subtract(row, x + k * columns, r[k * n + i], columns);
        divide(row, r[i * n + i], columns);
    }
}

/* ------------------------------------------------------------------------------------- history */

/* The memory of L-BFGS: the differences s of the latest points and y of the gradients there, and
 * the quadratic model that follows from them. Its matrix of second derivatives, B, comes from
 * B0 = scale (diagonal + weight F F'), F of few columns, scale such that B0 suits the latest
 * pair. Neighbouring blocks of variables share diagonal and F. */
typedef struct history {
    size_t count, each;       /* all variables, and those of a block */
    double *diagonal, weight; /* of B0 */
    const double *factor;     /* F, [each][rank] */
    int rank;
    double *root; /* [rank][rank], of I / weight + F' diagonal^-1 F: see solve_base */
    double *s[HISTORY_PAIRS], *y[HISTORY_PAIRS]; /* from the oldest on */
    double sy[HISTORY_PAIRS][HISTORY_PAIRS];     /* S' Y */
    double scale;
    int pairs;
    double *scratch; /* [count + rank] */
} history;

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

static void history_set_base(history *h, const double *diagonal, double weight) {
    memcpy(h->diagonal, diagonal, h->each * sizeof *diagonal);
    h->weight = weight;
    find_root(h);
    find_scale(h);
}

/* ---------------------------------------------------------------------------------------- pairs */

/* Of no pairs, with diagonal 1 and weight 0. */
static history *history_create(size_t each, size_t blocks, const double *factor, int rank) {
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

static void history_free(history *h) {
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

/* Adds the pair (to - from, new_gradient - old_gradient) in the place of the oldest if there is no
 * room. Ignores a pair without positive curvature, which rounding causes. */
static void history_add(history *h, const double *from, const double *to,
                        const double *old_gradient, const double *new_gradient) {
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

static void history_forget(history *h) {
    h->pairs = 0;
    find_scale(h);
}

/* ---------------------------------------------------------------------------------------- steps */

/* target = the minimum over u of gradient . (u - w) + (u - w)' B (u - w) / 2, by L-BFGS's two
 * loops. */
static void history_newton(const history *h, const double *w, const double *gradient,
                           double *target) {
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

/* ----------------------------------------------------------------------------------- minimiser */

enum {
    BACKTRACKS = 6, /* number of steps back before the history is dropped */
    WINDOW = 15     /* number of evaluations over which progress is judged */
};

static const double armijo = 1e-4, least_progress = 1e-7;

struct minimiser {
    size_t count, each; /* all variables, and those of a block */
    history *past;
    const double *diagonal; /* of the loss's second derivatives, together with `weight` */
    double weight, share;   /* `share`: the one that `past` was scaled with */
    double *w, *gradient;   /* the best point, and the objective's gradient there */
    double *target, *trial; /* the model's minimum; w + step (target - w) */
    double *told;           /* scratch: the objective's gradient at the trial */
    double objective, step;
    double expected; /* predicted first-order change of the objective from w to target, below 0 */
    double earlier[WINDOW];
    int evaluations, backtracks;
    bool stalled;
};

static void set_share(minimiser *m, double share) {
    double *scratch = m->target;
    m->share = fmax(share, 1e-6);
    double weight = m->share * m->weight;
    for (size_t i = 0; i < m->each; i++) scratch[i] = weight * m->diagonal[i] + 1;
    history_set_base(m->past, scratch, weight);
}

minimiser *minimiser_create(size_t each, size_t blocks, const double *start, const double *diagonal,
                            const double *factor, int rank, double weight) {
    minimiser *m = mem_alloc(1, sizeof *m);
    const size_t count = each * blocks;
    *m = (minimiser){.count = count, .each = each, .diagonal = diagonal, .weight = weight};
    m->objective = INFINITY;
    double **arrays[] = {&m->w, &m->gradient, &m->target, &m->trial, &m->told};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i] = mem_alloc(count, sizeof(double));
    }
    memcpy(m->trial, start, count * sizeof *start);
    memcpy(m->w, start, count * sizeof *start);
    m->past = history_create(each, blocks, factor, rank);
    set_share(m, 1);
    return m;
}

void minimiser_free(minimiser *m) {
    if (!m) return;
    history_free(m->past);
    free(m->w);
    free(m->gradient);
    free(m->target);
    free(m->trial);
    free(m->told);
    free(m);
}

const double *minimiser_trial(const minimiser *m) {
    return m->trial;
}

const double *minimiser_best(const minimiser *m) {
    return m->w;
}

double minimiser_objective(const minimiser *m) {
    return m->objective;
}

bool minimiser_stalled(const minimiser *m) {
    return m->stalled;
}

/* --------------------------------------------------------------------------------------- steps */

static double expected_change(const minimiser *m) {
    double change = 0;
    for (size_t i = 0; i < m->count; i++) {
        change += m->gradient[i] * (m->target[i] - m->w[i]);
    }
    return change;
}

static void find_target(minimiser *m) {
    history_newton(m->past, m->w, m->gradient, m->target);
    /* A weight of 0 without a slope is that of a feature that is left out. */
    for (size_t i = 0; i < m->count; i++) {
        if (m->gradient[i] == 0 && m->w[i] == 0) m->target[i] = 0;
    }
    m->expected = expected_change(m);
}

static void make_trial(minimiser *m) {
    for (size_t i = 0; i < m->count; i++) {
        m->trial[i] = m->step == 1 ? m->target[i] /* so that zeros are exact */
                                   : m->w[i] + m->step * (m->target[i] - m->w[i]);
    }
}

/* Finds a new direction from w. Without history its length is uncertain; backtracking finds one. */
static void set_out(minimiser *m) {
    find_target(m);
    if (!(m->expected < 0) && m->past->pairs > 0) {
        history_forget(m->past);
        find_target(m);
    }
    if (!(m->expected < 0)) m->stalled = true;
    m->step = 1;
    m->backtracks = 0;
    make_trial(m);
}

static void accept(minimiser *m, double objective, double share) {
    if (isfinite(m->objective)) {
        history_add(m->past, m->w, m->trial, m->gradient, m->told);
    }
    memcpy(m->w, m->trial, m->count * sizeof *m->w);
    memcpy(m->gradient, m->told, m->count * sizeof *m->gradient);
    m->objective = objective;
    if (share < 0.6 * m->share || share > 1.7 * m->share) set_share(m, share);
    set_out(m);
}

/* Shortens the step to the minimum of the parabola through the known values, but to no less than a
 * tenth and no more than a half of it. */
static void reject(minimiser *m, double objective) {
    if (++m->backtracks > BACKTRACKS && m->past->pairs > 0) {
        history_forget(m->past);
        set_out(m);
        return;
    }
    double above = objective - m->objective - m->expected * m->step;
    double best = above > 0 ? -m->expected * m->step * m->step / (2 * above) : 0.5 * m->step;
    if (!(best > 0.1 * m->step)) best = 0.1 * m->step;
    if (best > 0.5 * m->step) best = 0.5 * m->step;
    m->step = best;
    make_trial(m);
}

void minimiser_tell(minimiser *m, double loss, const double *gradient, double share) {
    double objective = loss;
    for (size_t i = 0; i < m->count; i++) {
        m->told[i] = gradient[i] + m->trial[i];
        objective += 0.5 * m->trial[i] * m->trial[i];
    }
    /* Infinite before the first step. */
    double wanted = m->objective + armijo * m->step * m->expected;
    if (objective < m->objective && objective <= wanted) {
        accept(m, objective, share);
    } else {
        reject(m, objective);
    }
    double *earlier = &m->earlier[m->evaluations % WINDOW];
    if (m->evaluations >= WINDOW && *earlier - m->objective < least_progress * m->objective) {
        m->stalled = true;
    }
    *earlier = m->objective;
    m->evaluations++;
}
