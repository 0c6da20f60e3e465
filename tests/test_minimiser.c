/* The minimiser on losses whose minimum is known, its history of changes, and linear systems. */
#include "support.h"

#include "core/memory.h"
#include "probe/minimiser.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_linear_systems(void **state) {
    (void)state;
    enum { N = 9, COLUMNS = 3 };
    random_restart(6);
    double *a = random_values(N * N, -1, 1), *x = random_values(N * COLUMNS, -1, 1);
    double c[N * COLUMNS] = {0}, symmetric[N * N] = {0};
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N; k++) {
            for (int j = 0; j < N; j++) symmetric[i * N + k] += a[i * N + j] * a[k * N + j];
        }
    }
    for (int i = 0; i < N * COLUMNS; i++) {
        for (int k = 0; k < N; k++) {
            c[i] += symmetric[i / COLUMNS * N + k] * x[k * COLUMNS + i % COLUMNS];
        }
    }
    assert_true(cholesky_factor(symmetric, N));
    cholesky_forward(symmetric, N, c, COLUMNS);
    cholesky_backward(symmetric, N, c, COLUMNS);
    assert_true(relative_error(c, x, N * COLUMNS) < 1e-8);
    assert_false(cholesky_factor((double[]){1, 0, 2, 1}, 2));
    free(a);
    free(x);
}

/* Returns the sum of (w_i - c_i)^2 a_i / 2 and, if `coupled`, 5 times the squared sum of w; and the
 * gradient. */
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

static void minimise(const double *a, const double *c, size_t n, bool coupled, double *w) {
    double *zero = mem_alloc(n, sizeof *zero), *gradient = mem_alloc(n, sizeof *gradient);
    double *factor = mem_alloc(n, sizeof *factor);
    for (size_t i = 0; i < n; i++) factor[i] = coupled ? 2 : 0.1; /* a rough guess */
    minimiser *m = minimiser_create(n, 1, zero, a, factor, 1, 1);
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
    minimise(a, c, N, false, w);
    for (int i = 0; i < N; i++) assert_true(fabs(w[i] - a[i] * c[i] / (a[i] + 1)) < 1e-3);
    minimise(a, c, N, true, w);
    quadratic(w, a, c, N, true, gradient);
    for (int i = 0; i < N; i++) assert_true(fabs(gradient[i] + w[i]) < 0.02);
    free(c);
}

/* A step that lowers the objective too little is refused like one that raises it, and the next one
 * goes to the minimum of the parabola through what is known. */
static void test_line_search(void **state) {
    (void)state;
    const double curvature = 3, none = 0, slope = -8, start = 0;
    const double target = -slope / (curvature + 1), expected = slope * target;
    minimiser *m = minimiser_create(1, 1, &start, &curvature, &none, 1, 1);
    minimiser_tell(m, 10, &slope, 1);
    double at = *minimiser_trial(m), step = 1;
    assert_true(fabs(at - target) < 1e-12);
    const double wanted[] = {0.3, 0.12, 0.05, 0.001};
    for (int i = 0; i < 4; i++) {
        const double above = -expected * step * step / (2 * wanted[i]);
        minimiser_tell(m, 10 + expected * step + above - 0.5 * at * at, &slope, 1);
        at = *minimiser_trial(m);
        step = fmax(wanted[i], 0.1 * step); /* by no more than a factor of ten */
        assert_true(fabs(at - step * target) < 1e-12);
        assert_true(*minimiser_best(m) == 0);
    }
    minimiser_tell(m, 10 + 0.5e-4 * expected * step - 0.5 * at * at, &slope, 1);
    assert_true(*minimiser_best(m) == 0);
    at = *minimiser_trial(m);
    assert_true(fabs(at - 0.5 * step * target) < 1e-12);
    step *= 0.5;
    minimiser_tell(m, 10 + 2e-4 * expected * step - 0.5 * at * at, &slope, 1);
    assert_true(*minimiser_best(m) == at);
    minimiser_free(m);
}

/* With more pairs than the history holds, the model still meets the secant condition of the last
 * pair, B s = y: a Newton step from its first point with gradient -y ends at its second one. */
static void test_history_meets_the_secant_condition(void **state) {
    (void)state;
    enum { N = 6, PAIRS = 50 };
    random_restart(5);
    double factor[N * 2], diagonal[N], from[N], to[N], g0[N], g1[N], target[N];
    for (int i = 0; i < N; i++) {
        diagonal[i] = 1 + i;
        factor[2 * i] = random_normal();
        factor[2 * i + 1] = random_normal();
    }
    history *h = history_create(N, 1, factor, 2);
    for (int k = 0; k < PAIRS; k++) {
        double sum = 0;
        for (int i = 0; i < N; i++) {
            from[i] = random_normal();
            to[i] = random_normal();
            sum += to[i] - from[i];
        }
        for (int i = 0; i < N; i++) {
            g0[i] = random_normal();
            g1[i] = g0[i] + (2 + i) * (to[i] - from[i]) + sum;
        }
        history_add(h, from, to, g0, g1);
        if (k == PAIRS / 2) history_set_base(h, diagonal, 0.7);
    }
    double change[N];
    for (int i = 0; i < N; i++) change[i] = g0[i] - g1[i];
    history_newton(h, from, change, target);
    assert_true(relative_error(target, to, N) < 1e-6);
    history_forget(h);
    assert_true(history_is_empty(h));
    history_free(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_systems),
        cmocka_unit_test(test_minimiser_on_quadratics),
        cmocka_unit_test(test_line_search),
        cmocka_unit_test(test_history_meets_the_secant_condition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
