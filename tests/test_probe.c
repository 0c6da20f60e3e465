/* The linear probe: its loss and gradient, its optima against other ways to find them, its
 * protocol, and what it refuses. */
#include "core/memory.h"
#include "core/npy.h"
#include "probe/history.h"
#include "probe/linear.h"
#include "probe/probe.h"
#include "support.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static backend *be;

/* --------------------------------------------------------------------------------- problems */

/* Features and labels on the host; in memory for the solver, or in files for the whole probe. */
typedef struct problem {
    size_t rows, units;
    float *x;
    int32_t *label; /* 0 and 1 */
    int8_t *sign;
} problem;

static double normal(void) {
    return sqrt(-2 * log(1 - random_uniform())) * cos(2 * M_PI * random_uniform());
}

/* Two classes that overlap; `spread` is the ratio of the largest to the smallest unit's scale, and
 * `mean` how many deviations means lie from 0. */
static problem make_problem(size_t rows, size_t units, double spread, double mean, uint64_t seed) {
    problem p = {rows, units, mem_alloc(rows * units, sizeof(float)),
                 mem_alloc(rows, sizeof(int32_t)), mem_alloc(rows, 1)};
    random_restart(seed);
    double *weight = random_values(units, -1, 1), *center = random_values(units, -mean, mean);
    for (size_t i = 0; i < rows; i++) {
        double z = 0, shared = normal();
        for (size_t u = 0; u < units; u++) {
            double scale = pow(spread, units > 1 ? (double)u / (double)(units - 1) - 0.5 : 0);
            double x = 0.5 * shared + normal();
            z += weight[u] * x;
            p.x[i * units + u] = (float)(scale * (x + center[u]));
        }
        p.label[i] = z + normal() > 0;
        p.sign[i] = p.label[i] ? 1 : -1;
    }
    free(weight);
    free(center);
    return p;
}

static void free_problem(problem *p) {
    free(p->x);
    free(p->label);
    free(p->sign);
}

static dataset as_dataset(const problem *p) {
    return (dataset){.features_path = "x.npy",
                     .labels_path = "x.labels.npy",
                     .rows = p->rows,
                     .units = p->units,
                     .x = p->x,
                     .label = p->label};
}

static void write_npy(const char *prefix, const char *ending, const char *type, size_t rows,
                      size_t columns, const void *data, size_t bytes) {
    char *path = mem_format("%s/%s%s", temporary_folder(), prefix, ending);
    file_writer writer;
    error err;
    int64_t start;
    if (!npy_begin(&writer, path, type, (int64_t)rows, (int64_t)columns, &start, &err) ||
        !file_write(&writer, data, bytes, &err) || !file_commit(&writer, &err)) {
        fail_msg("%s", err.text);
    }
    free(path);
}

static void write_problem(const char *prefix, const problem *p) {
    write_npy(prefix, ".npy", "<f4", p->rows, p->units, p->x, p->rows * p->units * sizeof *p->x);
    write_npy(prefix, ".labels.npy", "<i4", p->rows, 0, p->label, p->rows * sizeof *p->label);
}

/* ------------------------------------------------------------------- the same, in plain doubles */

static double margin_of(const problem *p, const double *w, size_t i) {
    double z = w[p->units];
    for (size_t u = 0; u < p->units; u++) z += w[u] * p->x[i * p->units + u];
    return z;
}

static double loss_of(const problem *p, const double *w, const int8_t *sign) {
    double loss = 0;
    for (size_t i = 0; i < p->rows; i++) {
        double z = sign[i] * margin_of(p, w, i);
        if (sign[i] != 0) loss += z > 0 ? log1p(exp(-z)) : log1p(exp(z)) - z;
    }
    return loss;
}

static void slopes_of(const problem *p, const double *w, const int8_t *sign, double *gradient) {
    memset(gradient, 0, (p->units + 1) * sizeof *gradient);
    for (size_t i = 0; i < p->rows; i++) {
        double r = -sign[i] / (1 + exp(sign[i] * margin_of(p, w, i)));
        for (size_t u = 0; u < p->units; u++) gradient[u] += r * p->x[i * p->units + u];
        gradient[p->units] += r;
    }
}

static double objective_of(const problem *p, const double *w, double cost, penalty penalty) {
    double sum = cost * loss_of(p, w, p->sign);
    for (size_t u = 0; u <= p->units; u++) {
        sum += penalty == PENALTY_L1 ? fabs(w[u]) : 0.5 * w[u] * w[u];
    }
    return sum;
}

/* The l2 optimum by Newton's method, damped; dense, so for few units. */
static void newton(const problem *p, double cost, double *w) {
    size_t n = p->units + 1;
    double *hessian = mem_alloc(n * n, sizeof *hessian), *g = mem_alloc(n, sizeof *g);
    double *to = mem_alloc(n, sizeof *to);
    memset(w, 0, n * sizeof *w);
    for (int step = 0; step < 100; step++) {
        slopes_of(p, w, p->sign, g);
        memset(hessian, 0, n * n * sizeof *hessian);
        for (size_t i = 0; i < p->rows; i++) {
            double a = 1 / (1 + exp(margin_of(p, w, i)));
            for (size_t j = 0; j < n; j++) {
                double xj = j < p->units ? p->x[i * p->units + j] : 1;
                for (size_t k = 0; k < n; k++) {
                    double xk = k < p->units ? p->x[i * p->units + k] : 1;
                    hessian[j * n + k] += cost * a * (1 - a) * xj * xk;
                }
            }
        }
        for (size_t j = 0; j < n; j++) {
            hessian[j * n + j] += 1;
            g[j] = cost * g[j] + w[j];
        }
        for (size_t j = 0; j < n; j++) { /* Gauss-Jordan: positive definite, no pivots */
            for (size_t r = 0; r < n; r++) {
                if (r == j) continue;
                double factor = hessian[r * n + j] / hessian[j * n + j];
                for (size_t k = j; k < n; k++) hessian[r * n + k] -= factor * hessian[j * n + k];
                g[r] -= factor * g[j];
            }
        }
        double before = objective_of(p, w, cost, PENALTY_L2), t = 1;
        do {
            for (size_t j = 0; j < n; j++) to[j] = w[j] - t * g[j] / hessian[j * n + j];
            t /= 2;
        } while (objective_of(p, to, cost, PENALTY_L2) > before && t > 1e-12);
        if (objective_of(p, to, cost, PENALTY_L2) >= before) break;
        memcpy(w, to, n * sizeof *w);
    }
    free(hessian);
    free(g);
    free(to);
}

/* ------------------------------------------------------------------------------------- the loss */

static void check_loss(size_t rows, size_t units, bool resident) {
    enum { MODELS = 3 };
    problem p = make_problem(rows, units, 10, 1, rows);
    dataset d = as_dataset(&p);
    for (size_t i = 3; i < rows; i += 7) p.sign[i] = 0;
    double size = 0.5 / sqrt((double)units); /* margins that saturate say little */
    double *w = random_values(MODELS * (units + 1), -size, size);
    for (size_t i = 0; i < MODELS * (units + 1); i++) w[i] = (float)w[i];
    double loss[MODELS], curvature[MODELS], entropy[MODELS];
    double *gradient = mem_alloc(MODELS * (units + 1), sizeof *gradient);
    double *margins = mem_alloc(MODELS * rows, sizeof *margins);
    double *expected = mem_alloc(units + 1, sizeof *expected);
    error err;
    logistic *l = logistic_create(be, &d, MODELS, resident, &err);
    assert_non_null(l);
    assert_true(logistic_margins(l, w, MODELS, margins, &err));
    assert_true(logistic_evaluate(l, w, MODELS, p.sign, loss, gradient, curvature, &err));
    logistic_entropy(l, MODELS, p.sign, (double[]){1, 0.5, 0}, entropy);
    for (size_t k = 0; k < MODELS; k++) {
        const double *weights = w + k * (units + 1), shrink[] = {1, 0.5, 0};
        double sums[2] = {0}, counted = 0;
        for (size_t i = 0; i < rows; i++) {
            double z = margin_of(&p, weights, i);
            assert_true(fabs(margins[i * MODELS + k] - z) < 1e-4);
            if (p.sign[i] == 0) continue;
            double a = 1 / (1 + exp(p.sign[i] * z)), b = shrink[k] * a;
            counted++;
            sums[0] += a * (1 - a);
            if (b > 0) sums[1] -= b * log(b) + (1 - b) * log(1 - b);
        }
        slopes_of(&p, weights, p.sign, expected);
        assert_true(fabs(loss[k] / loss_of(&p, weights, p.sign) - 1) < 1e-6);
        assert_true(relative_error(gradient + k * (units + 1), expected, units + 1) < 1e-5);
        assert_true(fabs(curvature[k] * counted / sums[0] - 1) < 1e-5);
        assert_true(fabs(entropy[k] - sums[1]) <= 1e-5 * sums[1]);
    }
    logistic_free(l);
    free(expected);
    free(margins);
    free(gradient);
    free(w);
    free_problem(&p);
}

static void test_loss(void **state) {
    (void)state;
    check_loss(1, 1, true);
    check_loss(255, 33, true);
    check_loss(1500, 20000, true); /* several panels on the CPU */
    check_loss(2500, 5, false);
    check_loss(9000, 3, true); /* and everywhere */
    check_loss(9000, 3, false);
}

/* The gradient against differences of the loss, which is in double but for its products. */
static void test_gradient_by_differences(void **state) {
    (void)state;
    problem p = make_problem(60, 4, 1, 0, 3);
    dataset d = as_dataset(&p);
    error err;
    logistic *l = logistic_create(be, &d, 1, true, &err);
    double w[5] = {0.25, -0.5, 0.125, 0.75, -0.25}, gradient[5], ignored[5], up, down, curvature;
    assert_true(logistic_evaluate(l, w, 1, p.sign, &up, gradient, &curvature, &err));
    for (int j = 0; j < 5; j++) {
        double step = 1.0 / 128, at = w[j];
        w[j] = at + step;
        assert_true(logistic_evaluate(l, w, 1, p.sign, &up, ignored, &curvature, &err));
        w[j] = at - step;
        assert_true(logistic_evaluate(l, w, 1, p.sign, &down, ignored, &curvature, &err));
        w[j] = at;
        assert_true(fabs((up - down) / (2 * step) - gradient[j]) < 2e-3);
    }
    logistic_free(l);
    free_problem(&p);
}

/* With fewer units than directions nothing is left to the diagonal. */
static void test_curvature_is_that_of_the_moments(void **state) {
    (void)state;
    enum { UNITS = 12, COUNT = UNITS + 1 };
    problem p = make_problem(400, UNITS, 100, 5, 4);
    dataset d = as_dataset(&p);
    for (size_t i = 0; i < p.rows; i += 5) p.sign[i] = 0;
    error err;
    logistic *l = logistic_create(be, &d, 5, true, &err);
    for (int standardize = 0; standardize < 2; standardize++) {
        view v = view_create(&d, p.sign, standardize);
        curvature c;
        assert_true(curvature_find(&c, l, p.sign, &v, &err));
        double moments[COUNT][COUNT] = {0};
        for (size_t i = 0; i < p.rows; i++) {
            double x[COUNT] = {[UNITS] = 1};
            for (size_t u = 0; u < UNITS; u++) {
                x[u] = p.x[i * UNITS + u];
                if (standardize) x[u] = (x[u] - v.mean[u]) / v.deviation[u];
            }
            for (size_t j = 0; j < COUNT && p.sign[i] != 0; j++) {
                for (size_t k = 0; k < COUNT; k++) moments[j][k] += x[j] * x[k];
            }
        }
        for (size_t j = 0; j < COUNT; j++) {
            for (size_t k = 0; k < COUNT; k++) {
                double sum = j == k ? c.diagonal[j] : 0, size = moments[j][j] * moments[k][k];
                for (size_t r = 0; r < (size_t)c.rank; r++) {
                    sum += c.factor[j * (size_t)c.rank + r] * c.factor[k * (size_t)c.rank + r];
                }
                assert_true(fabs(sum - moments[j][k]) < 1e-3 * sqrt(size));
            }
        }
        curvature_free(&c);
        view_free(&v);
    }
    logistic_free(l);
    free_problem(&p);
}

static void test_linear_systems(void **state) {
    (void)state;
    enum { N = 9, COLUMNS = 3 };
    random_restart(6);
    double *a = random_values(N * N, -1, 1), *x = random_values(N * COLUMNS, -1, 1);
    double b[N * COLUMNS] = {0}, c[N * COLUMNS] = {0}, symmetric[N * N] = {0};
    a[0] = 0; /* needs a pivot */
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N; k++) {
            for (int j = 0; j < N; j++) symmetric[i * N + k] += a[i * N + j] * a[k * N + j];
            for (int j = 0; j < COLUMNS; j++)
                b[i * COLUMNS + j] += a[i * N + k] * x[k * COLUMNS + j];
        }
    }
    for (int i = 0; i < N * COLUMNS; i++) {
        for (int k = 0; k < N; k++) {
            c[i] += symmetric[i / COLUMNS * N + k] * x[k * COLUMNS + i % COLUMNS];
        }
    }
    linear_solve(a, N, b, COLUMNS);
    assert_true(relative_error(b, x, N * COLUMNS) < 1e-10);
    assert_true(linear_cholesky(symmetric, N));
    linear_forward(symmetric, N, c, COLUMNS);
    linear_backward(symmetric, N, c, COLUMNS);
    assert_true(relative_error(c, x, N * COLUMNS) < 1e-8);
    assert_false(linear_cholesky((double[]){1, 0, 2, 1}, 2));
    free(a);
    free(x);
}

/* -------------------------------------------------------------------------------- the minimiser */

/* The sum of (w_i - c_i)^2 a_i / 2, coupled by (sum of w)^2 / 2 where asked. */
static double quadratic(const double *w, const double *a, const double *c, size_t n, bool coupled,
                        double *gradient) {
    double value = 0, sum = 0;
    for (size_t i = 0; i < n && coupled; i++) sum += w[i];
    for (size_t i = 0; i < n; i++) {
        value += 0.5 * a[i] * (w[i] - c[i]) * (w[i] - c[i]);
        gradient[i] = a[i] * (w[i] - c[i]) + 10 * sum;
    }
    return value + 5 * sum * sum;
}

static void minimise(penalty penalty, const double *a, const double *c, size_t n, bool coupled,
                     double *w) {
    double *zero = mem_alloc(n, sizeof *zero), *gradient = mem_alloc(n, sizeof *gradient);
    double *factor = mem_alloc(n, sizeof *factor);
    for (size_t i = 0; i < n; i++) factor[i] = coupled ? 2 : 0.1; /* a guess, no more */
    minimiser *m = minimiser_create(n, penalty, zero, a, factor, 1, 1);
    for (int k = 0; k < 400 && !minimiser_stalled(m); k++) {
        double loss = quadratic(minimiser_trial(m), a, c, n, coupled, gradient);
        minimiser_tell(m, loss, gradient, 1);
    }
    assert_true(minimiser_stalled(m));
    memcpy(w, minimiser_best(m), n * sizeof *w);
    minimiser_free(m);
    free(factor);
    free(zero);
    free(gradient);
}

static void test_minimiser_on_quadratics(void **state) {
    (void)state;
    enum { N = 40 };
    random_restart(4);
    double a[N], *c = random_values(N, -3, 3), w[N], gradient[N];
    for (int i = 0; i < N; i++) a[i] = exp(6 * random_uniform() - 3);
    minimise(PENALTY_L1, a, c, N, false, w);
    for (int i = 0; i < N; i++) { /* soft thresholds */
        double size = fabs(c[i]) - 1 / a[i], expected = size > 0 ? copysign(size, c[i]) : 0;
        assert_true(fabs(w[i] - expected) < 1e-3);
        if (expected == 0) assert_true(w[i] == 0);
    }
    minimise(PENALTY_L2, a, c, N, false, w);
    for (int i = 0; i < N; i++) assert_true(fabs(w[i] - a[i] * c[i] / (a[i] + 1)) < 1e-3);
    minimise(PENALTY_L1, a, c, N, true, w);
    quadratic(w, a, c, N, true, gradient);
    for (int i = 0; i < N; i++) {
        if (w[i] == 0)
            assert_true(fabs(gradient[i]) < 1.02);
        else
            assert_true(fabs(gradient[i] + copysign(1, w[i])) < 0.02);
    }
    minimise(PENALTY_L2, a, c, N, true, w);
    quadratic(w, a, c, N, true, gradient);
    for (int i = 0; i < N; i++) assert_true(fabs(gradient[i] + w[i]) < 0.02);
    free(c);
}

/* More pairs than the history holds: the model still knows the last change of gradient, B s = y, so
 * that its minimum from there is where a step back would be. */
static void test_history_meets_the_secant_condition(void **state) {
    (void)state;
    enum { N = 6, PAIRS = 50 };
    random_restart(5);
    double factor[N * 2], diagonal[N], from[N], to[N], g0[N], g1[N], target[N];
    for (int i = 0; i < N; i++) {
        diagonal[i] = 1 + i;
        factor[2 * i] = normal();
        factor[2 * i + 1] = normal();
    }
    history *h = history_create(N, factor, 2);
    for (int k = 0; k < PAIRS; k++) {
        double sum = 0;
        for (int i = 0; i < N; i++) {
            from[i] = normal();
            to[i] = normal();
            sum += to[i] - from[i];
        }
        for (int i = 0; i < N; i++) {
            g0[i] = normal();
            g1[i] = g0[i] + (2 + i) * (to[i] - from[i]) + sum;
        }
        history_add(h, from, to, g0, g1);
        if (k == PAIRS / 2) history_set_base(h, diagonal, 0.7);
    }
    double change[N];
    for (int i = 0; i < N; i++) change[i] = g0[i] - g1[i];
    history_newton(h, from, change, target);
    assert_true(relative_error(target, to, N) < 1e-6);
    for (int i = 0; i < N; i++) change[i] -= to[i] > 0 ? 1 : -1; /* what |u|_1 then takes back */
    history_newton_l1(h, from, change, target);
    assert_true(relative_error(target, to, N) < 1e-2);
    history_forget(h);
    assert_true(history_is_empty(h));
    history_free(h);
}

/* ---------------------------------------------------------------------------------------- fits */

static const double costs[PROBE_COSTS] = {0x1p-8, 0x1p-7, 0x1p-6, 0x1p-5, 0x1p-4,
                                          0x1p-3, 0x1p-2, 0x1p-1, 1};

/* All nine; the caller frees. */
static double *fit_all(const problem *p, penalty penalty, bool standardize, fit_report *reports) {
    dataset d = as_dataset(p);
    error err;
    view v = view_create(&d, p->sign, standardize);
    logistic *l = logistic_create(be, &d, PROBE_COSTS, true, &err);
    double *weights = mem_alloc(PROBE_COSTS * (p->units + 1), sizeof *weights);
    if (!l || !fit_models(l, &d, p->sign, penalty, &v, costs, PROBE_COSTS, weights, reports, false,
                          &err)) {
        fail_msg("%s", err.text);
    }
    logistic_free(l);
    view_free(&v);
    return weights;
}

static void test_l2_meets_newton(void **state) {
    (void)state;
    const double spread[] = {1, 1e6, 1}, mean[] = {0, 0, 20};
    for (int n = 0; n < 3; n++) {
        problem p = make_problem(300, 6, spread[n], mean[n], 10 + (uint64_t)n);
        fit_report reports[PROBE_COSTS];
        double *weights = fit_all(&p, PENALTY_L2, false, reports), best[7];
        for (int k = 0; k < PROBE_COSTS; k++) {
            newton(&p, costs[k], best);
            double least = objective_of(&p, best, costs[k], PENALTY_L2);
            double found = objective_of(&p, weights + k * 7, costs[k], PENALTY_L2);
            assert_true(fabs(found / least - 1) < 2e-5);
            assert_true(fabs(reports[k].objective / found - 1) < 1e-5);
        }
        free(weights);
        free_problem(&p);
    }
}

/* At the l1 optimum the loss's slope is 1 against each weight, and at most 1 where it is 0. */
static void test_l1_meets_its_conditions(void **state) {
    (void)state;
    problem p = make_problem(400, 60, 1, 0, 20);
    size_t count = p.units + 1, zeros = 0;
    fit_report reports[PROBE_COSTS];
    double *weights = fit_all(&p, PENALTY_L1, false, reports);
    double *slope = mem_alloc(count, sizeof *slope);
    for (int k = 0; k < PROBE_COSTS; k++) {
        const double *w = weights + (size_t)k * count;
        slopes_of(&p, w, p.sign, slope);
        for (size_t j = 0; j < count; j++) {
            if (w[j] == 0) {
                zeros++;
                assert_true(fabs(costs[k] * slope[j]) < 1.005);
            } else {
                assert_true(fabs(costs[k] * slope[j] + copysign(1, w[j])) < 0.005);
            }
        }
        assert_true(reports[k].gap < 1e-2 && reports[k].gap > -1e-6);
    }
    assert_in_range(zeros, 61, 8 * count);
    free(slope);
    free(weights);
    free_problem(&p);
}

/* No nudge of any one weight, or of two together, improves an l1 fit of features far from standard.
 */
static void test_l1_far_from_standard(void **state) {
    (void)state;
    const double spread[] = {1e5, 1}, mean[] = {0, 20};
    for (int n = 0; n < 2; n++) {
        problem p = make_problem(300, 8, spread[n], mean[n], 30 + (uint64_t)n);
        fit_report reports[PROBE_COSTS];
        double *weights = fit_all(&p, PENALTY_L1, false, reports);
        for (int k = 0; k < PROBE_COSTS; k++) {
            double *w = weights + k * 9, found = objective_of(&p, w, costs[k], PENALTY_L1);
            for (int trial = 0; trial < 500; trial++) {
                double saved[9], size = pow(10, -6 * random_uniform());
                memcpy(saved, w, sizeof saved);
                for (int moved = 0; moved < 1 + trial % 2; moved++) {
                    size_t j = random_below(9);
                    double scale = j < 8 ? pow(spread[n], 0.5 - (double)j / 7) : 1;
                    w[j] = trial % 5 == 0 ? 0 : w[j] + size * scale * normal();
                }
                assert_true(objective_of(&p, w, costs[k], PENALTY_L1) > found * (1 - 2e-5));
                memcpy(w, saved, sizeof saved);
            }
        }
        free(weights);
        free_problem(&p);
    }
}

/* Standardising by hand and then fitting gives the same model. */
static void test_standardizing(void **state) {
    (void)state;
    for (penalty penalty = PENALTY_L1; penalty <= PENALTY_L2; penalty++) {
        problem p = make_problem(500, 10, 1e4, 3, 40), q = make_problem(500, 10, 1, 0, 41);
        for (size_t i = 0; i < p.rows; i++) p.x[i * 10 + 9] = 2.5f; /* constant */
        memcpy(q.sign, p.sign, p.rows);
        dataset d = as_dataset(&p);
        double mean[10], deviation[10];
        dataset_moments(&d, p.sign, mean, deviation);
        assert_true(deviation[9] == 0 && fabs(mean[9] - 2.5) < 1e-12);
        for (size_t i = 0; i < 500 * 10; i++) {
            double scale = deviation[i % 10] > 0 ? deviation[i % 10] : 1;
            q.x[i] = (float)((p.x[i] - mean[i % 10]) / scale);
        }
        fit_report mine[PROBE_COSTS], hand[PROBE_COSTS];
        double *w = fit_all(&p, penalty, true, mine), *v = fit_all(&q, penalty, false, hand);
        for (int k = 0; k < PROBE_COSTS; k++) {
            assert_true(fabs(mine[k].objective / hand[k].objective - 1) < 2e-5);
            assert_true(w[k * 11 + 9] == 0);
            for (int u = 0; u < 9; u++) {
                assert_true(fabs(w[k * 11 + u] * deviation[u] - v[k * 11 + u]) < 2e-2);
            }
        }
        free(w);
        free(v);
        free_problem(&p);
        free_problem(&q);
    }
}

static void test_threads_do_not_matter(void **state) {
    (void)state;
    if (test_device_is_cuda()) skip();
    problem p = make_problem(1500, 40, 1, 1, 50);
    fit_report reports[PROBE_COSTS];
    double *first = fit_all(&p, PENALTY_L1, false, reports);
    backend *kept = be;
    int threads = omp_get_max_threads();
    be = backend_cpu(FP32, 1);
    omp_set_num_threads(1);
    double *second = fit_all(&p, PENALTY_L1, false, reports);
    be->destroy(be);
    be = backend_cpu(FP32, 3);
    omp_set_num_threads(3);
    double *third = fit_all(&p, PENALTY_L1, false, reports);
    be->destroy(be);
    be = kept;
    omp_set_num_threads(threads);
    assert_memory_equal(first, second, PROBE_COSTS * 41 * sizeof *first);
    assert_memory_equal(first, third, PROBE_COSTS * 41 * sizeof *first);
    free(first);
    free(second);
    free(third);
    free_problem(&p);
}

/* --------------------------------------------------------------------------------------- split */

static void test_split(void **state) {
    (void)state;
    enum { ROWS = 1000 };
    int16_t class[ROWS];
    bool held[ROWS], again[ROWS];
    int of_class[4] = {0}, held_of[4] = {0}, moved = 0;
    random_restart(60);
    for (int i = 0; i < ROWS; i++) {
        uint64_t draw = random_below(10);
        class[i] = draw == 0 ? -1 : draw < 4 ? 1 : draw < 5 ? 2 : 0;
        of_class[class[i] + 1]++;
    }
    assert_true(probe_split(class, ROWS, 3, 7, held));
    for (int i = 0; i < ROWS; i++) held_of[class[i] + 1] += held[i];
    assert_int_equal(held_of[0], 0);
    for (int k = 1; k < 4; k++) assert_int_equal(held_of[k], (of_class[k] + 2) / 5);
    assert_true(probe_split(class, ROWS, 3, 7, again));
    assert_memory_equal(held, again, sizeof held);
    assert_true(probe_split(class, ROWS, 3, 8, again));
    for (int i = 0; i < ROWS; i++) moved += held[i] != again[i];
    assert_in_range(moved, ROWS / 5, ROWS / 2);
}

static void test_split_of_few(void **state) {
    (void)state;
    bool held[5];
    assert_true(probe_split((int16_t[]){1, 0, -1, 0, 1}, 5, 2, 0, held));
    assert_int_equal(held[0] + held[4], 1);
    assert_int_equal(held[1] + held[3], 1);
    assert_false(held[2]);
    assert_false(probe_split((int16_t[]){1, 0, -1, 1, 1}, 5, 2, 0, held));
    assert_false(probe_split((int16_t[]){-1, 0, -1, 0, -1}, 5, 2, 0, held));
}

/* ------------------------------------------------------------------------------------ protocol */

static probe_options options_of(penalty penalty) {
    return (probe_options){.train = path_of("train"), .test = path_of("test"), .penalty = penalty};
}

static probe_result run_probe(const probe_options *how) {
    probe_result result;
    error err;
    if (!probe_run(be, how, &result, &err)) fail_msg("%s", err.text);
    return result;
}

static void write_three(problem *train, problem *valid, problem *test) {
    *train = make_problem(200, 12, 1, 0, 70);
    problem rest = make_problem(400, 12, 1, 0, 70); /* the same weights, and the first rows again */
    *valid = make_problem(100, 12, 1, 0, 71);
    *test = make_problem(150, 12, 1, 0, 72);
    memcpy(valid->x, rest.x + 200 * 12, 100 * 12 * sizeof *rest.x);
    memcpy(valid->label, rest.label + 200, 100 * sizeof *rest.label);
    memcpy(test->x, rest.x + 250 * 12, 150 * 12 * sizeof *rest.x);
    memcpy(test->label, rest.label + 250, 150 * sizeof *rest.label);
    free_problem(&rest);
    write_problem("train", train);
    write_problem("valid", valid);
    write_problem("test", test);
}

/* Fits all nine in the test, counts errors in double, and expects the smallest C that errs least.
 */
static void test_chooses_the_smallest_best_cost(void **state) {
    (void)state;
    for (penalty penalty = PENALTY_L1; penalty <= PENALTY_L2; penalty++) {
        problem train, valid, test;
        write_three(&train, &valid, &test);
        probe_options how = options_of(penalty);
        how.valid = path_of("valid");
        probe_result r = run_probe(&how);
        fit_report reports[PROBE_COSTS];
        double *weights = fit_all(&train, penalty, false, reports);
        int best = -1, fewest = 101, test_wrong = 0;
        for (int k = 0; k < PROBE_COSTS; k++) {
            int wrong = 0;
            for (size_t i = 0; i < valid.rows; i++) {
                wrong += (margin_of(&valid, weights + k * 13, i) > 0) != valid.label[i];
            }
            if (wrong >= fewest) continue;
            fewest = wrong;
            best = k;
        }
        size_t nonzero = 0;
        for (size_t i = 0; i < test.rows; i++) {
            test_wrong += (margin_of(&test, weights + best * 13, i) > 0) != test.label[i];
        }
        for (int u = 0; u < 12; u++) nonzero += weights[best * 13 + u] != 0;
        assert_true(r.cost == costs[best]);
        assert_true(fabs(r.valid_error - fewest) < 1e-9);
        assert_true(fabs(r.error - 100 * test_wrong / 150.0) < 1e-9);
        assert_int_equal(r.nonzero, nonzero);
        assert_int_equal(r.train_rows, 200);
        assert_int_equal(r.valid_rows, 100);
        assert_int_equal(r.test_rows, 150);
        free(weights);
        free_problem(&train);
        free_problem(&valid);
        free_problem(&test);
    }
}

/* Classes far apart: every C is right everywhere, so the first is taken. */
static void test_ties_go_to_the_smallest_cost(void **state) {
    (void)state;
    problem p = make_problem(100, 3, 1, 0, 80);
    for (size_t i = 0; i < p.rows; i++) {
        p.label[i] = (int32_t)(i % 2) * 5 + 2; /* labels need not be 0 and 1 */
        p.x[i * 3 + 1] = i % 2 ? 30 : -30;
    }
    write_problem("train", &p);
    write_problem("test", &p);
    probe_options how = options_of(PENALTY_L2);
    how.out = path_of("out");
    probe_result r = run_probe(&how);
    assert_true(r.cost == 0x1p-8 && r.error == 0 && r.valid_error == 0);
    assert_int_equal(r.top_count, 3);
    assert_int_equal(r.top_units[0], 1);
    assert_int_equal(r.valid_rows, 20);
    npy said;
    error err;
    assert_true(npy_open(&said, path_of("out.predictions.npy"), &err));
    assert_string_equal(said.type, "<i4");
    assert_int_equal(said.rows, 100);
    assert_memory_equal(said.data, p.label, 100 * sizeof *p.label);
    npy_close(&said);
    free_problem(&p);
}

static char *bytes_of(const char *name, size_t *size) {
    return read_text(path_of(name), size);
}

static void test_same_seed_same_bytes(void **state) {
    (void)state;
    problem train, valid, test;
    write_three(&train, &valid, &test);
    probe_options how = options_of(PENALTY_L1);
    how.out = path_of("out");
    how.seed = 3;
    size_t sizes[2], same[2];
    run_probe(&how);
    char *weights = bytes_of("out.weights.npy", &sizes[0]);
    char *predictions = bytes_of("out.predictions.npy", &sizes[1]);
    run_probe(&how);
    char *weights_again = bytes_of("out.weights.npy", &same[0]);
    char *predictions_again = bytes_of("out.predictions.npy", &same[1]);
    assert_int_equal(sizes[0], same[0]);
    assert_int_equal(sizes[1], same[1]);
    assert_memory_equal(weights, weights_again, sizes[0]);
    assert_memory_equal(predictions, predictions_again, sizes[1]);
    free(weights);
    free(weights_again);
    free(predictions);
    free(predictions_again);
    free_problem(&train);
    free_problem(&valid);
    free_problem(&test);
}

/* Rows labelled -1, however wild, change neither fit nor errors; they are predicted all the same.
 */
static void test_unlabelled_rows_are_dropped(void **state) {
    (void)state;
    problem train, valid, test;
    write_three(&train, &valid, &test);
    probe_options how = options_of(PENALTY_L2);
    how.standardize = true;
    how.out = path_of("out");
    probe_result without = run_probe(&how);
    for (int which = 0; which < 2; which++) {
        problem *p = which ? &test : &train;
        problem more = make_problem(2 * p->rows, 12, 1, 0, 90);
        for (size_t i = 0; i < p->rows; i++) {
            memcpy(more.x + 2 * i * 12, p->x + i * 12, 12 * sizeof *p->x);
            for (size_t u = 0; u < 12; u++) more.x[(2 * i + 1) * 12 + u] = which ? 1 : 1000;
            more.label[2 * i] = p->label[i];
            more.label[2 * i + 1] = -1;
        }
        write_problem(which ? "test" : "train", &more);
        free_problem(&more);
    }
    probe_result with = run_probe(&how);
    assert_int_equal(without.dropped, 0);
    assert_int_equal(with.dropped, 350);
    assert_int_equal(with.train_rows, 200);
    assert_int_equal(with.test_rows, 150);
    assert_true(with.cost == without.cost && with.error == without.error);
    assert_true(fabs(with.objective / without.objective - 1) < 2e-5);
    npy said;
    error err;
    assert_true(npy_open(&said, path_of("out.predictions.npy"), &err));
    assert_int_equal(said.rows, 300);
    for (int i = 0; i < 300; i++) {
        assert_in_range(((const int32_t *)said.data)[i], 0, 1);
    }
    npy_close(&said);
    free_problem(&train);
    free_problem(&valid);
    free_problem(&test);
}

/* --------------------------------------------------------------------------------- refusals */

static void check_refused(const probe_options *how, const char *file, const char *why) {
    probe_result result;
    error err = {0};
    assert_false(probe_run(be, how, &result, &err));
    if (!strstr(err.text, file) || !strstr(err.text, why) || strchr(err.text, '\n')) {
        fail_msg("expected '%s' and '%s' in: %s", file, why, err.text);
    }
    assert_int_equal(err.status, STATUS_FAILED);
    assert_false(file_exists(path_of("refused.weights.npy")));
    assert_false(file_exists(path_of("refused.predictions.npy")));
    assert_false(file_exists(path_of("refused.weights.npy.tmp")));
}

static void test_refusals(void **state) {
    (void)state;
    problem good = make_problem(20, 3, 1, 0, 100);
    for (int i = 0; i < 20; i++) good.label[i] = i % 2;
    write_problem("train", &good);
    write_problem("test", &good);
    write_problem("bad", &good);
    probe_options how = options_of(PENALTY_L1);
    how.out = path_of("refused");

    how.test = path_of("none");
    check_refused(&how, "none.npy", "No such file");
    how.test = path_of("bad");
    remove(path_of("bad.labels.npy"));
    check_refused(&how, "bad.labels.npy", "No such file");
    write_npy("bad", ".labels.npy", "<i4", 19, 0, good.label, 19 * 4);
    check_refused(&how, "bad.labels.npy", "19 labels for the 20 documents");
    write_npy("bad", ".labels.npy", "<i8", 20, 0, good.x, 20 * 8);
    check_refused(&how, "bad.labels.npy", "expected one int32 label");
    write_npy("bad", ".labels.npy", "<i4", 10, 2, good.label, 20 * 4);
    check_refused(&how, "bad.labels.npy", "expected one int32 label");
    write_npy("bad", ".labels.npy", "<i4", 20, 0, good.label, 20 * 4);
    write_npy("bad", ".npy", "<f4", 20, 2, good.x, 20 * 2 * 4);
    check_refused(&how, "bad.npy", "2 units, but");
    write_npy("bad", ".npy", "<f8", 10, 3, good.x, 10 * 3 * 8 / 2);
    check_refused(&how, "bad.npy", "not a whole .npy file");
    write_npy("bad", ".npy", "<i4", 20, 3, good.label, 20 * 4);
    check_refused(&how, "bad.npy", "not a whole .npy file");
    write_npy("bad", ".npy", "<i4", 20, 3, good.x, 20 * 3 * 4);
    check_refused(&how, "bad.npy", "expected float32");
    write_npy("bad", ".npy", "<f4", 60, 0, good.x, 20 * 3 * 4);
    check_refused(&how, "bad.npy", "expected float32");
    write_npy("bad", ".npy", "<f4", 0, 3, good.x, 0);
    check_refused(&how, "bad.npy", "no documents");

    float kept = good.x[13 * 3 + 1];
    good.x[13 * 3 + 1] = NAN;
    write_problem("bad", &good);
    check_refused(&how, "bad.npy", "row 13, unit 1");
    good.x[13 * 3 + 1] = -INFINITY;
    write_problem("bad", &good);
    check_refused(&how, "bad.npy", "row 13, unit 1");
    good.x[13 * 3 + 1] = kept;
    good.label[4] = 2;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "row 4: expected the label 0, 1 or -1, got 2");
    for (int i = 0; i < 20; i++) good.label[i] = -1;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "every document is unlabelled");

    how.train = how.test = path_of("bad");
    check_refused(&how, "bad.labels.npy", "every document is unlabelled");
    good.label[3] = 1;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "found only the label 1");
    good.label[7] = 0;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "at least two documents of each class");
    good.label[9] = 5;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "at least two documents of each class");
    for (int i = 0; i < 20; i++) {
        good.label[i] = i % 2;
        for (int u = 0; u < 3; u++) good.x[i * 3 + u] = i % 2 ? FLT_MAX : -FLT_MAX;
    }
    write_problem("bad", &good);
    check_refused(&how, "bad.npy", "overflow");

    how.train = path_of("train");
    how.test = path_of("test");
    how.valid = path_of("bad");
    write_npy("bad", ".npy", "<f4", 20, 2, good.x, 20 * 2 * 4);
    check_refused(&how, "bad.npy", "2 units, but");
    how.valid = NULL;
    how.out = path_of("no such folder");
    char *inside = mem_format("%s/refused", how.out);
    how.out = inside;
    check_refused(&how, "no such folder", "No such file");
    free(inside);
    free_problem(&good);
}

int main(void) {
    be = test_backend(FP32);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_gradient_by_differences),
        cmocka_unit_test(test_curvature_is_that_of_the_moments),
        cmocka_unit_test(test_linear_systems),
        cmocka_unit_test(test_minimiser_on_quadratics),
        cmocka_unit_test(test_history_meets_the_secant_condition),
        cmocka_unit_test(test_l2_meets_newton),
        cmocka_unit_test(test_l1_meets_its_conditions),
        cmocka_unit_test(test_l1_far_from_standard),
        cmocka_unit_test(test_standardizing),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_of_few),
        cmocka_unit_test(test_chooses_the_smallest_best_cost),
        cmocka_unit_test(test_ties_go_to_the_smallest_cost),
        cmocka_unit_test(test_same_seed_same_bytes),
        cmocka_unit_test(test_unlabelled_rows_are_dropped),
        cmocka_unit_test(test_refusals),
    };
    int failed = cmocka_run_group_tests_name("probe", tests, NULL, NULL);
    be->destroy(be);
    return failed;
}
